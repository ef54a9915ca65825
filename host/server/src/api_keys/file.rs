//! The file of API keys.
//!
//! ```toml
//! [[key]]
//! name = "alice-laptop"              # for logs and metrics
//! sha256 = "9f86d081884c7d65..."     # of the key; `corral keys new` prints both
//! tenant = "alice"                   # keys of a tenant share its quota and its fair share
//! deployments = ["/chat"]            # all deployments if omitted
//!
//! [key.quota]                        # of this key alone; every limit is optional
//! requests-per-minute = 60
//!
//! [tenant.alice]                     # of all keys of the tenant together
//! concurrent-requests = 4
//! tokens-per-request = 4096
//! tokens-per-minute = 20000
//! tokens-per-day = 1000000
//! ```

use super::key::KeyDigest;
use corral_runtime::QuotaLimits;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most keys in a file.
const MAX_KEYS: usize = 10_000;
/// Largest file.
const MAX_BYTES: u64 = 8 << 20;
/// Longest name, in bytes.
const MAX_NAME: usize = 64;

/// Why a key file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// The file cannot be read.
    #[error("cannot read the API keys in {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file is too large.
    #[error("{} is not a key file: it is larger than {MAX_BYTES} bytes or has more than {MAX_KEYS} keys", .0.display())]
    TooLarge(PathBuf),
    /// The file is not TOML, or has unknown fields.
    #[error("{} is not a key file: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Position and error.
        what: String,
    },
    /// A field is invalid.
    #[error("{}: {what}", path.display())]
    InvalidField {
        /// The file.
        path: PathBuf,
        /// The field and what was expected.
        what: String,
    },
}

/// The validated content of a key file.
#[derive(Debug, Default)]
pub(super) struct KeyFile {
    pub(super) keys: Vec<KeyEntry>,
    pub(super) tenants: BTreeMap<String, QuotaLimits>,
}

#[derive(Debug)]
pub(super) struct KeyEntry {
    pub(super) name: String,
    pub(super) digest: KeyDigest,
    pub(super) tenant: String,
    /// `None` grants access to all deployments.
    pub(super) deployments: Option<Vec<String>>,
    pub(super) quota: QuotaLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    key: Vec<TomlKey>,
    #[serde(default)]
    tenant: BTreeMap<String, QuotaTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlKey {
    name: String,
    sha256: String,
    tenant: String,
    deployments: Option<Vec<String>>,
    #[serde(default)]
    quota: QuotaTable,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct QuotaTable {
    concurrent_requests: Option<u32>,
    requests_per_minute: Option<u32>,
    tokens_per_request: Option<u64>,
    tokens_per_minute: Option<u64>,
    tokens_per_day: Option<u64>,
}

impl From<QuotaTable> for QuotaLimits {
    fn from(table: QuotaTable) -> Self {
        QuotaLimits {
            concurrent: table.concurrent_requests,
            requests_per_minute: table.requests_per_minute,
            tokens_per_request: table.tokens_per_request,
            tokens_per_minute: table.tokens_per_minute,
            tokens_per_day: table.tokens_per_day,
        }
    }
}

impl KeyFile {
    pub(super) fn read(path: &Path) -> Result<Self, ApiKeysError> {
        let mut text = String::new();
        let size = std::fs::File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .map_err(|cause| ApiKeysError::Unreadable {
                path: path.to_owned(),
                cause,
            })?;
        if size as u64 > MAX_BYTES {
            return Err(ApiKeysError::TooLarge(path.to_owned()));
        }
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ApiKeysError> {
        let document: Document = toml::from_str(text).map_err(|error| ApiKeysError::Malformed {
            path: path.to_owned(),
            what: error.to_string(),
        })?;
        if document.key.len() > MAX_KEYS {
            return Err(ApiKeysError::TooLarge(path.to_owned()));
        }
        let invalid = |what: String| ApiKeysError::InvalidField {
            path: path.to_owned(),
            what,
        };
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        let mut keys = Vec::new();
        for key in document.key {
            let TomlKey { name, tenant, .. } = &key;
            for (what, name) in [("key", name), ("tenant", tenant)] {
                if !is_name(name) {
                    return Err(invalid(format!(
                        "'{}' is not a valid name of a {what}; use 1 to {MAX_NAME} letters, digits \
                         and '-', '_', '.', '@'",
                        name.escape_debug()
                    )));
                }
            }
            let Some(digest) = KeyDigest::from_hex(&key.sha256) else {
                return Err(invalid(format!(
                    "the sha256 of the key '{name}' is invalid; write 64 hexadecimal digits, as \
                     'corral keys new' prints them"
                )));
            };
            if !names.insert(name.clone()) {
                return Err(invalid(format!("two keys are named '{name}'; rename one")));
            }
            if !digests.insert(digest) {
                return Err(invalid(format!(
                    "the key '{name}' also exists under another name; remove one"
                )));
            }
            keys.push(KeyEntry {
                name: key.name,
                digest,
                tenant: key.tenant,
                deployments: key.deployments,
                quota: key.quota.into(),
            });
        }
        let used: HashSet<_> = keys.iter().map(|key| key.tenant.as_str()).collect();
        if let Some(name) = document
            .tenant
            .keys()
            .find(|name| !used.contains(name.as_str()))
        {
            return Err(invalid(format!(
                "no key has the tenant of [tenant.{}]; check its name",
                name.escape_debug()
            )));
        }
        let tenants = document.tenant.into_iter();
        Ok(KeyFile {
            tenants: tenants.map(|(name, quota)| (name, quota.into())).collect(),
            keys,
        })
    }
}

/// Whether `text` can appear unescaped in logs, metrics and messages.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(text: &str) -> Result<KeyFile, String> {
        let text = text.replace("DIGEST", DIGEST);
        KeyFile::parse(&text, Path::new("keys.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_read() {
        let file = parse(
            r#"
            [[key]]
            name = "a"
            sha256 = "DIGEST"
            tenant = "t"
            deployments = ["/x", "/y"]
            [key.quota]
            concurrent-requests = 1
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
        assert_eq!(file.keys[0].quota, all);
        let named = ["/x", "/y"].map(str::to_owned);
        assert_eq!(file.keys[0].deployments.as_deref(), Some(&named[..]));
        assert_eq!(file.tenants["t"].tokens_per_day, Some(6));
        assert!(parse("").expect("no keys").keys.is_empty());
    }

    #[test]
    fn mistakes_name_the_field() {
        let key = |name: &str, rest: &str| {
            format!("[[key]]\nname = \"{name}\"\nsha256 = \"DIGEST\"\ntenant = \"t\"\n{rest}\n")
        };
        for (text, expected) in [
            ("x".to_owned(), "is not a key file"),
            ("[[keys]]\n".to_owned(), "unknown field `keys`"),
            (key("a", "colour = 1"), "unknown field `colour`"),
            (
                key("a", "[key.quota]\ntokens = 1"),
                "unknown field `tokens`",
            ),
            (
                key("a", "[key.quota]\nconcurrent-requests = -1"),
                "concurrent-requests",
            ),
            (key("a b", ""), "'a b' is not a valid name of a key"),
            (key("", ""), "'' is not a valid name of a key"),
            (key("a", "") + &key("a", ""), "two keys are named 'a'"),
            (key("a", "") + &key("b", ""), "under another name"),
            (key("a", "").replace("DIGEST", "1"), "64 hexadecimal digits"),
            (
                key("a", "[tenant.u]\nconcurrent-requests = 1"),
                "[tenant.u]",
            ),
            ("[[key]]\nname = \"a\"\n".to_owned(), "missing field"),
        ] {
            let error = parse(&text).expect_err(expected);
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
