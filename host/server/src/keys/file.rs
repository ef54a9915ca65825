//! The file of keys.
//!
//! ```toml
//! [[key]]
//! name = "alice-laptop"              # for logs and metrics
//! sha256 = "9f86d081884c7d65..."     # of the key; `corral keys new` makes both
//! tenant = "alice"                   # keys of one tenant share its quota and its turn
//! deployments = ["/chat"]            # for all when it is left out
//!
//! [key.quota]                        # of this key alone; every limit may be left out
//! requests-per-minute = 60
//!
//! [tenant.alice]                     # of all keys of the tenant together
//! concurrent = 4
//! tokens-per-request = 4096
//! tokens-per-minute = 20000
//! tokens-per-day = 1000000
//! ```

use super::secret::Digest;
use corral_runtime::QuotaLimits;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Keys that a file may hold.
const KEYS: usize = 10_000;
/// Bytes that it may have.
const BYTES: u64 = 8 << 20;
/// Letters of a name.
const NAME: usize = 64;

/// Why a file holds no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It can't be read.
    #[error("cannot read the keys in {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// It is too large.
    #[error("{} is no file of keys: it is larger than {BYTES} bytes or has more than {KEYS} keys", .0.display())]
    TooLarge(PathBuf),
    /// It is not TOML, or has fields that mean nothing.
    #[error("{} is no file of keys: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        what: String,
    },
    /// A field is not as it should be.
    #[error("{}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Which one, and what was expected.
        what: String,
    },
}

/// What stands in the file, checked.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) keys: Vec<Entry>,
    pub(super) tenants: BTreeMap<String, QuotaLimits>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) digest: Digest,
    pub(super) tenant: String,
    /// For all of them without a list.
    pub(super) deployments: Option<Vec<String>>,
    pub(super) quota: QuotaLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    key: Vec<Key>,
    #[serde(default)]
    tenant: BTreeMap<String, Limits>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    name: String,
    sha256: String,
    tenant: String,
    deployments: Option<Vec<String>>,
    #[serde(default)]
    quota: Limits,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Limits {
    concurrent: Option<u32>,
    requests_per_minute: Option<u32>,
    tokens_per_request: Option<u64>,
    tokens_per_minute: Option<u64>,
    tokens_per_day: Option<u64>,
}

impl From<Limits> for QuotaLimits {
    fn from(limits: Limits) -> Self {
        QuotaLimits {
            concurrent: limits.concurrent,
            requests_per_minute: limits.requests_per_minute,
            tokens_per_request: limits.tokens_per_request,
            tokens_per_minute: limits.tokens_per_minute,
            tokens_per_day: limits.tokens_per_day,
        }
    }
}

impl Contents {
    pub(super) fn read(path: &Path) -> Result<Self, KeysError> {
        let mut text = String::new();
        let size = std::fs::File::open(path)
            .and_then(|file| file.take(BYTES + 1).read_to_string(&mut text))
            .map_err(|cause| KeysError::Unreadable {
                path: path.to_owned(),
                cause,
            })?;
        if size as u64 > BYTES {
            return Err(KeysError::TooLarge(path.to_owned()));
        }
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, KeysError> {
        let document: Document = toml::from_str(text).map_err(|error| KeysError::Malformed {
            path: path.to_owned(),
            what: error.to_string(),
        })?;
        if document.key.len() > KEYS {
            return Err(KeysError::TooLarge(path.to_owned()));
        }
        let wrong = |what: String| KeysError::Wrong {
            path: path.to_owned(),
            what,
        };
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        let mut keys = Vec::new();
        for key in document.key {
            let Key { name, tenant, .. } = &key;
            for (what, name) in [("key", name), ("tenant", tenant)] {
                if !is_name(name) {
                    return Err(wrong(format!(
                        "'{}' is no name of a {what}; use 1 to {NAME} letters, digits and '-', '_', \
                         '.', '@'",
                        name.escape_debug()
                    )));
                }
            }
            let Some(digest) = Digest::from_hex(&key.sha256) else {
                return Err(wrong(format!(
                    "the sha256 of the key '{name}' is none; it should have 64 hexadecimal digits, as \
                     'corral keys new' prints them"
                )));
            };
            if !names.insert(name.clone()) {
                return Err(wrong(format!("two keys are named '{name}'; rename one")));
            }
            if !digests.insert(digest) {
                return Err(wrong(format!(
                    "the key '{name}' is there under another name too; remove one"
                )));
            }
            keys.push(Entry {
                name: key.name,
                digest,
                tenant: key.tenant,
                deployments: key.deployments,
                quota: key.quota.into(),
            });
        }
        let with_keys: HashSet<_> = keys.iter().map(|key| key.tenant.as_str()).collect();
        if let Some(name) = document
            .tenant
            .keys()
            .find(|name| !with_keys.contains(name.as_str()))
        {
            return Err(wrong(format!(
                "[tenant.{}] is a tenant that no key has; check its name",
                name.escape_debug()
            )));
        }
        let tenants = document.tenant.into_iter();
        Ok(Contents {
            tenants: tenants
                .map(|(name, limits)| (name, limits.into()))
                .collect(),
            keys,
        })
    }
}

/// Names stand in logs, metrics and messages as they are.
fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=NAME).contains(&text.len()) && text.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(text: &str) -> Result<Contents, String> {
        let text = text.replace("DIGEST", DIGEST);
        Contents::parse(&text, Path::new("keys.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_read() {
        let contents = parse(
            r#"
            [[key]]
            name = "a"
            sha256 = "DIGEST"
            tenant = "t"
            deployments = ["/x", "/y"]
            [key.quota]
            concurrent = 1
            requests-per-minute = 2
            tokens-per-request = 3
            tokens-per-minute = 4
            tokens-per-day = 5
            [tenant.t]
            tokens-per-day = 6
            "#,
        )
        .expect("good");
        let all = QuotaLimits {
            concurrent: Some(1),
            requests_per_minute: Some(2),
            tokens_per_request: Some(3),
            tokens_per_minute: Some(4),
            tokens_per_day: Some(5),
        };
        assert_eq!(contents.keys[0].quota, all);
        let named = ["/x", "/y"].map(str::to_owned);
        assert_eq!(contents.keys[0].deployments.as_deref(), Some(&named[..]));
        assert_eq!(contents.tenants["t"].tokens_per_day, Some(6));
        assert!(parse("").expect("no keys").keys.is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let key = |name: &str, rest: &str| {
            format!("[[key]]\nname = \"{name}\"\nsha256 = \"DIGEST\"\ntenant = \"t\"\n{rest}\n")
        };
        for (text, expected) in [
            ("x".to_owned(), "is no file of keys"),
            ("[[keys]]\n".to_owned(), "unknown field `keys`"),
            (key("a", "colour = 1"), "unknown field `colour`"),
            (
                key("a", "[key.quota]\ntokens = 1"),
                "unknown field `tokens`",
            ),
            (key("a", "[key.quota]\nconcurrent = -1"), "concurrent"),
            (key("a b", ""), "'a b' is no name of a key"),
            (key("", ""), "'' is no name of a key"),
            (key("a", "") + &key("a", ""), "two keys are named 'a'"),
            (key("a", "") + &key("b", ""), "under another name"),
            (key("a", "").replace("DIGEST", "1"), "64 hexadecimal digits"),
            (key("a", "[tenant.u]\nconcurrent = 1"), "[tenant.u]"),
            ("[[key]]\nname = \"a\"\n".to_owned(), "missing field"),
        ] {
            let error = parse(&text).expect_err(expected);
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
