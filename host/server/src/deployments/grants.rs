//! `[grants]`: permissions of a deployment beyond its models.

use super::bounded_number::BoundedInteger;
use super::manifest_error::ManifestError;
use super::name::DeploymentName;
use super::outbound_entry::OutboundEntry;
use crate::triggers::check_subjects;
use corral_runtime::{SubjectPattern, check_folder_name, check_secret_name};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most entries of a grant of outgoing requests, and of one of calls to deployments.
const MAX_OUTBOUND: usize = 64;
/// Most secrets of a deployment.
const MAX_SECRETS: usize = 32;
/// Most folders of a deployment.
const MAX_FOLDERS: usize = 16;

/// Permissions of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Grants {
    /// Share cached prefixes with all deployments that share theirs. The time to process a prompt then
    /// reveals to them whether another prompt had the same prefix.
    #[serde(default)]
    pub share_prefixes: bool,
    /// Values that it may keep with `wasi:keyvalue`: MiB of keys and values for each tenant of API keys, and for
    /// requests without a key together. None if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_value_mib: Option<BoundedInteger<1, 65_536>>,
    /// Names of the server's secrets that it may read with 'wasi:config'. None if omitted.
    #[cfg_attr(test, schemars(length(max = 32)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Names of the server's folders that it may read, with all below them, as '/NAME'. None if omitted.
    #[cfg_attr(test, schemars(length(max = 16)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<String>,
    /// Where it may send HTTP requests to: 'https://api.example.com', or a table with that as 'url' and 'methods'.
    /// Nowhere if omitted.
    #[cfg_attr(test, schemars(length(max = 64)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outbound: Vec<OutboundEntry>,
    /// Names of other deployments of the server that it may call, at 'http://NAME.corral.internal'. None if omitted.
    #[cfg_attr(test, schemars(length(max = 64)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DeploymentName>,
    /// Subjects of messages that it may publish with 'wasmcloud:messaging', such as 'orders.new', 'orders.*' or 'audit.>'.
    /// None if omitted.
    #[cfg_attr(test, schemars(with = "Vec<String>", length(max = 32)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<SubjectPattern>,
    /// Clocks that run; true if omitted. With false they stand still at the start of a request, except for the plugin's own timers.
    #[serde(default = "granted", skip_serializing_if = "is_granted")]
    pub clocks: bool,
    /// Random numbers; true if omitted. With false 'wasi:random/random' ends the request, and the insecure ones are always the same.
    #[serde(default = "granted", skip_serializing_if = "is_granted")]
    pub random: bool,
}

/// The value of a grant that is only taken away: language runtimes need it.
fn granted() -> bool {
    true
}

fn is_granted(grant: &bool) -> bool {
    *grant
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            share_prefixes: false,
            key_value_mib: None,
            secrets: Vec::new(),
            folders: Vec::new(),
            outbound: Vec::new(),
            deployments: Vec::new(),
            messages: Vec::new(),
            clocks: granted(),
            random: granted(),
        }
    }
}

impl Grants {
    pub(super) fn is_none(&self) -> bool {
        *self == Grants::default()
    }

    /// Checks what deserialization does not, for a deployment with this configuration.
    pub(super) fn check(
        &self,
        configuration: &BTreeMap<String, String>,
    ) -> Result<(), ManifestError> {
        ManifestError::check_count("grants.outbound", self.outbound.len(), MAX_OUTBOUND)?;
        ManifestError::check_count("grants.deployments", self.deployments.len(), MAX_OUTBOUND)?;
        check_subjects("grants.messages", &self.messages)?;
        check_names(
            "grants.folders",
            &self.folders,
            MAX_FOLDERS,
            check_folder_name,
        )?;
        check_names(
            "grants.secrets",
            &self.secrets,
            MAX_SECRETS,
            check_secret_name,
        )?;
        let mut secrets = self.secrets.iter();
        match secrets.find(|name| configuration.contains_key(*name)) {
            Some(name) => Err(ManifestError::field(
                "grants.secrets",
                format!("names '{name}', which is a key of [configuration] too; rename one"),
            )),
            None => Ok(()),
        }
    }
}

/// Checks names that a field lists. No message repeats a malformed one, which may be a secret's value by mistake.
fn check_names(
    field: &str,
    names: &[String],
    max: usize,
    check: fn(&str) -> Result<(), String>,
) -> Result<(), ManifestError> {
    let refuse = |problem: String| Err(ManifestError::field(field, problem));
    ManifestError::check_count(field, names.len(), max)?;
    let mut seen = BTreeSet::new();
    for (index, name) in names.iter().enumerate() {
        if let Err(problem) = check(name) {
            return refuse(format!("has an entry that {problem} (entry {})", index + 1));
        }
        if !seen.insert(name) {
            return refuse(format!("names '{name}' twice; remove one"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::deployments::Manifest;

    const HEAD: &str = "name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']\n";

    #[test]
    fn clocks_and_random_numbers_are_granted_unless_denied() {
        let grants = |table: &str| {
            let manifest = Manifest::from_toml(&format!("{HEAD}{table}"));
            let manifest = manifest.expect(table);
            let json = serde_json::to_value(&manifest).expect("serializable");
            (manifest.grants, json["grants"].clone())
        };
        let (all, json) = grants("");
        assert!(all.clocks && all.random && json.is_null(), "{json}");
        let (same, json) = grants("[grants]\nclocks = true\nrandom = true\n");
        assert!(same == all && json.is_null(), "{json}");
        let (none, json) = grants("[grants]\nclocks = false\nrandom = false\n");
        assert!(!none.clocks && !none.random);
        assert_eq!(
            json,
            serde_json::json!({"share-prefixes": false, "clocks": false, "random": false})
        );
    }

    #[test]
    fn mistakes_in_grants_are_named() {
        let head = HEAD;
        for (text, expected) in [
            (
                format!("{head}[grants]\noutbound = ['example.org']\n"),
                "line 5, column 13: 'example.org' is not the target of a grant; write SCHEME://HOST",
            ),
            (
                format!(
                    "{head}[[grants.outbound]]\nurl = 'https://a.example'\nmethods = ['get']\n"
                ),
                "'get' is not a method; write it in upper case",
            ),
            (
                format!("{head}[[grants.outbound]]\nurl = 'https://a.example'\nport = 1\n"),
                "unknown field `port`",
            ),
            (
                format!(
                    "{head}[grants]\noutbound = [{}]\n",
                    "'http://a', ".repeat(65)
                ),
                "'grants.outbound' has 65 entries",
            ),
            (
                format!("{head}[grants]\nsecrets = ['a', 'sk-PASTED']\n"),
                "'grants.secrets' has an entry that is not a valid name of a secret",
            ),
            (
                format!("{head}[grants]\nsecrets = ['a', 'a']\n"),
                "names 'a' twice",
            ),
            (
                format!("{head}[grants]\nsecrets = [{}]\n", "'a', ".repeat(33)),
                "'grants.secrets' has 33 entries",
            ),
            (
                format!("{head}[grants]\nsecrets = ['a']\n[configuration]\na = 'b'\n"),
                "names 'a', which is a key of [configuration] too",
            ),
            (
                format!("{head}[grants]\nfolders = ['/srv']\n"),
                "'grants.folders' has an entry that is not a valid name of a folder",
            ),
            (
                format!("{head}[grants]\nfolders = ['a', 'a']\n"),
                "'grants.folders' names 'a' twice",
            ),
            (
                format!("{head}[grants]\nfolders = [{}]\n", "'a', ".repeat(17)),
                "'grants.folders' has 17 entries",
            ),
        ] {
            let error = Manifest::from_toml(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}\n{error}");
            assert!(!error.contains("PASTED"), "{error}");
        }
    }
}
