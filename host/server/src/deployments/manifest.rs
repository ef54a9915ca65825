//! `corral.toml`: what a deployment is, as its author writes it.
//!
//! The same structure travels to the admin API as JSON, with the digests of the component and of those
//! that it is linked with in the places of their files, and lies in the store. Fields that nobody knows are refused, and so are fields whose time
//! has not come, since a setting that does nothing is worse than none. `manifest.schema.json` is the
//! structure as a JSON Schema for editors; a test keeps it true.

use super::bounded::{Seconds, Whole};
use super::digest::{Digest, DigestError};
use super::links::Links;
use super::name::Name;
use crate::problem::ErrorFormat;
use crate::routes::Prefix;
use crate::terms::Access;
use corral_runtime::QuotaLimits;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The manifest's JSON Schema, draft 2020-12.
pub const MANIFEST_SCHEMA: &str = include_str!("../../manifest.schema.json");

/// Most routes of a deployment.
const ROUTES: usize = 32;
/// Most models that a manifest names.
const MODELS: usize = 64;
/// Most entries of a configuration.
const ENTRIES: usize = 64;
/// Longest key of a configuration, in bytes.
const KEY: usize = 128;
/// Longest value of a configuration, in bytes.
const VALUE: usize = 8 << 10;

/// A deployment as its author describes it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Manifest {
    /// What the deployment is called: lower-case letters, digits and '-'.
    pub name: Name,
    /// The component: a file beside the manifest, or the digest of one that the server has,
    /// 'sha256:' and 64 hexadecimal digits.
    pub component: String,
    /// Path prefixes below which it answers, such as '/chat'. They match whole segments, and the
    /// longest one wins.
    #[cfg_attr(test, schemars(with = "Vec<String>", length(min = 1, max = 32)))]
    pub routes: Vec<Prefix>,
    /// Components that the handler is linked with.
    #[serde(default, skip_serializing_if = "Links::is_none")]
    pub links: Links,
    /// The models that the plugin may open, the default one first; all that the server has, when
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// How the errors look that the host answers in the plugin's place.
    #[serde(default)]
    pub error_format: ErrorFormat,
    /// Who may call it: 'keys' for those with an API key, 'open' for everyone. When left out, those
    /// with a key if the server has any, else everyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Whose generations go first: those of the deployment with the higher number, always.
    #[serde(default)]
    pub priority: u8,
    /// What it may do beyond answering with what the server's models say.
    #[serde(default, skip_serializing_if = "Grants::is_none")]
    pub grants: Grants,
    /// What it may use; where something is left out, the server's own limits hold.
    #[serde(default, skip_serializing_if = "RequestedLimits::is_none")]
    pub limits: RequestedLimits,
    /// What the plugin finds in its environment, and all that it finds there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

/// What a deployment may do beyond the ordinary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Grants {
    /// The beginnings of its prompts are shared with all deployments that share theirs. How quickly a
    /// prompt is read then tells them whether another one's began like it.
    #[serde(default)]
    pub share_prefixes: bool,
    /// Hosts that it may send requests to. This version of Corral lets none out: the list has to be
    /// empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outbound: Vec<String>,
}

impl Grants {
    fn is_none(&self) -> bool {
        *self == Grants::default()
    }
}

/// What a deployment asks to be held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RequestedLimits {
    /// Memory of one instance, in MiB. Times the requests at once it has to fit into the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Whole<1, 4096>>,
    /// How long a request may take, its wait and its whole answer included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_seconds: Option<Seconds>,
    /// How long the plugin may compute for a request; waiting costs nothing. No longer than the request
    /// may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<Seconds>,
    /// Largest body of a request, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_kib: Option<Whole<1, 4_194_304>>,
    /// Largest body of an answer, in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kib: Option<Whole<1, 4_194_304>>,
    /// Requests at once, each in an instance of its own; those of other revisions that still run count.
    /// At most as many as the server's pool of instances has for one deployment: all but one in eight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<Whole<1, 10_000>>,
    /// Requests that may wait for one of those to end; more are told to come back. At most 16 for each
    /// that the pool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Whole<0, 1_000_000>>,
    /// How long a generation may wait for its turn before it is refused; as long as the request has
    /// time, when left out, and no longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_seconds: Option<Seconds>,
    /// The part of each model's cells that its sequences may have together while they run. A prompt that
    /// needs more alone is refused, and an answer that gets longer is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells_percent: Option<Whole<1, 100>>,
    /// Requests in any minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<Whole<1, 1_000_000_000>>,
    /// Tokens of one request, those of its prompts and those that it may generate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_request: Option<Whole<1, 1_000_000_000>>,
    /// Tokens in any minute, of all requests together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<Whole<1, 1_000_000_000_000>>,
    /// Tokens in any 24 hours, of all requests together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<Whole<1, 1_000_000_000_000>>,
}

impl RequestedLimits {
    fn is_none(&self) -> bool {
        *self == RequestedLimits::default()
    }

    /// Those that are a quota of all callers together.
    pub(super) fn allowance(&self) -> QuotaLimits {
        // The range keeps it within 32 bits.
        let requests = |number: Whole<1, 1_000_000_000>| u32::try_from(number.get());
        QuotaLimits {
            concurrent: None,
            requests_per_minute: self
                .requests_per_minute
                .map(|number| requests(number).unwrap_or(u32::MAX)),
            tokens_per_request: self.tokens_per_request.map(Whole::get),
            tokens_per_minute: self.tokens_per_minute.map(Whole::get),
            tokens_per_day: self.tokens_per_day.map(Whole::get),
        }
    }
}

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It can't be read as TOML, or not as a manifest.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there, and what was expected.
        message: String,
    },
    /// A field says what can't be.
    #[error("the field '{field}' {problem}")]
    Field {
        /// The field's name, with those of its tables before it.
        field: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
}

impl Manifest {
    /// Reads a `corral.toml` and checks it.
    pub fn from_toml(text: &str) -> Result<Self, ManifestError> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Digests of the component and of those that it is linked with, in this order, each once.
    ///
    /// # Errors
    /// If one of them is named by its file.
    pub fn digests(&self) -> Result<Vec<Digest>, DigestError> {
        let mut digests = vec![self.component.parse()?];
        for digest in self.links.digests()? {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        Ok(digests)
    }

    /// What reading alone does not find: doubled and unoffered things, and too much of anything.
    pub fn check(&self) -> Result<(), ManifestError> {
        let refuse = |field: &str, problem: String| {
            Err(ManifestError::Field {
                field: field.to_owned(),
                problem,
            })
        };
        if self.component.is_empty() {
            return refuse("component", "is empty; name a .wasm file".to_owned());
        }
        if self.routes.is_empty() || self.routes.len() > ROUTES {
            let problem = format!(
                "has {} entries; give from 1 to {ROUTES}, e.g. [\"/chat\"]",
                self.routes.len()
            );
            return refuse("routes", problem);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.routes.iter().find(|route| !seen.insert(*route)) {
            return refuse("routes", format!("names '{twice}' twice; leave one away"));
        }
        self.links.check()?;
        if let Some(host) = self.grants.outbound.first() {
            let problem = format!(
                "asks for '{host}', but this version of Corral lets no requests out; leave it away"
            );
            return refuse("grants.outbound", problem);
        }
        if let Some(models) = &self.models {
            if models.is_empty() || models.len() > MODELS {
                let problem = format!(
                    "has {} entries; give from 1 to {MODELS}, or leave it away for all models",
                    models.len()
                );
                return refuse("models", problem);
            }
            let mut seen = BTreeSet::new();
            if let Some(twice) = models.iter().find(|model| !seen.insert(*model)) {
                return refuse("models", format!("names '{twice}' twice; leave one away"));
            }
        }
        self.check_configuration()
    }

    fn check_configuration(&self) -> Result<(), ManifestError> {
        let refuse = |field: String, problem: String| Err(ManifestError::Field { field, problem });
        if self.configuration.len() > ENTRIES {
            let problem = format!(
                "has {} entries; at most {ENTRIES} are taken",
                self.configuration.len()
            );
            return refuse("configuration".to_owned(), problem);
        }
        for (key, value) in &self.configuration {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let good = key.chars().all(word)
                && key.len() <= KEY
                && key.starts_with(|c: char| !c.is_ascii_digit());
            if !good {
                let problem = format!(
                    "is no name for an environment variable; use letters, digits and '_', at most {KEY}"
                );
                let key: String = key.chars().take(KEY).collect();
                return refuse(format!("configuration.{}", key.escape_debug()), problem);
            }
            if value.len() > VALUE || value.contains('\0') {
                let problem =
                    format!("has a value that is longer than {VALUE} bytes or holds a zero byte");
                return refuse(format!("configuration.{key}"), problem);
            }
        }
        Ok(())
    }
}

/// Where in the text the error is, and what it says in one line.
fn syntax(text: &str, error: &toml::de::Error) -> ManifestError {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    ManifestError::Syntax {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        message: error
            .message()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
name = "chat"
component = "chat.wasm"
routes = ["/chat", "/v1/chat"]
models = ["tiny"]
error-format = "openai"
access = "open"
priority = 7

[grants]
share-prefixes = true

[links]
templating = "chatml.wasm"

[links.sampling]
min-p = "min-p.wasm"

[limits]
memory-mib = 32
time-seconds = 20
cpu-seconds = 0.5
request-kib = 64
response-kib = 128
concurrent = 4
queue = 0
queue-seconds = 2.5
cells-percent = 25
requests-per-minute = 100
tokens-per-request = 1000
tokens-per-minute = 10000
tokens-per-day = 100000

[configuration]
GREETING = "hello"
"#;

    fn error_of(text: &str) -> String {
        Manifest::from_toml(text).expect_err(text).to_string()
    }

    #[test]
    fn a_full_manifest_is_read_and_travels_as_json() {
        let manifest = Manifest::from_toml(FULL).expect("good");
        assert_eq!(manifest.name.as_str(), "chat");
        assert_eq!(manifest.routes[1].as_str(), "/v1/chat");
        assert_eq!(manifest.error_format, ErrorFormat::OpenAi);
        let limits = &manifest.limits;
        assert_eq!(limits.memory_mib.map(|n| n.times(1 << 20)), Some(32 << 20));
        assert_eq!(
            limits.cpu_seconds.map(Seconds::duration),
            Some(std::time::Duration::from_millis(500))
        );
        assert_eq!(limits.queue.map(Whole::get), Some(0));
        let json = serde_json::to_string(&manifest).expect("serialisable");
        assert_eq!(
            serde_json::from_str::<Manifest>(&json).expect("its own"),
            manifest
        );
    }

    #[test]
    fn what_may_be_left_out_has_a_default() {
        let manifest =
            Manifest::from_toml("name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']").expect("good");
        assert_eq!(manifest.error_format, ErrorFormat::Problem);
        assert_eq!((manifest.priority, manifest.models.as_ref()), (0, None));
        let json = serde_json::to_value(&manifest).expect("serialisable");
        let expected = serde_json::json!({
            "name": "a", "component": "a.wasm", "routes": ["/a"], "error-format": "problem",
            "priority": 0,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn mistakes_are_shown_where_they_stand() {
        let head = "name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']\n";
        for (text, expected) in [
            (
                "name = 'a'\n\ncolour = 1\n".to_owned(),
                "line 3, column 1: unknown field `colour`",
            ),
            (
                "name = 'A'\n".to_owned(),
                "line 1, column 8: 'A' is no name",
            ),
            (
                "name = 'a'\ncomponent = 'a'\nroutes = ['/a', 'b']".to_owned(),
                "line 3, column 10: the route 'b' does not begin with '/'",
            ),
            ("name = ".to_owned(), "line 1, column 8: "),
            (
                "name = 'a'\ncomponent = 'x'".to_owned(),
                "missing field `routes`",
            ),
            (
                format!("{head}[limits]\n\tmemory-mib = 0\n"),
                "line 5, column 15: 0 is out of range; give a whole number from 1 to 4096",
            ),
            (
                format!("{head}[limits]\nqueue = -1\n"),
                "-1 is out of range",
            ),
            (
                format!("{head}[limits]\ncpu-seconds = 0\n"),
                "line 5, column 15: 0 is out of range; give seconds",
            ),
            (
                format!("{head}[limits]\ncpu-seconds = nan\n"),
                "is out of range",
            ),
            (
                format!("{head}[limits]\nmemory = 1\n"),
                "line 5, column 1: unknown field `memory`",
            ),
            (
                format!("{head}[grants]\nfiles = 1\n"),
                "unknown field `files`",
            ),
            (format!("{head}priority = 256\n"), "line 4, column 12: "),
            (
                format!("{head}error-format = 'xml'\n"),
                "line 4, column 16: unknown variant `xml`",
            ),
            (format!("{head}models = []\n"), "'models' has 0 entries"),
            (format!("{head}models = ['a', 'a']\n"), "names 'a' twice"),
            (
                format!("{head}[links]\n'a:b/c' = 'd.wasm'\n"),
                "line 5, column 1: unknown field `a:b/c`",
            ),
            (
                format!("{head}[grants]\noutbound = ['example.org']\n"),
                "'grants.outbound' asks for 'example.org', but",
            ),
            (
                format!("{head}[configuration]\n'a b' = 'c'\n"),
                "configuration.a b' is no name",
            ),
            (
                format!("{head}[configuration]\na = \"\\u0000\"\n"),
                "zero byte",
            ),
            (head.replace("['/a']", "[]"), "'routes' has 0 entries"),
            (head.replace("['/a']", "['/a', '/a']"), "names '/a' twice"),
            (head.replace("'a.wasm'", "''"), "'component' is empty"),
        ] {
            let error = error_of(&text);
            assert!(error.contains(expected), "{text}\n{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_readmes_manifest_is_one_and_whole() {
        let readme = include_str!("../../../../README.md");
        let (_, from) = readme.split_once("```toml\n").expect("it has one");
        let (text, _) = from.split_once("```").expect("it ends");
        let manifest = Manifest::from_toml(text).expect("good");
        let schema: serde_json::Value = serde_json::from_str(MANIFEST_SCHEMA).expect("JSON");
        let shown = serde_json::to_value(&manifest).expect("serialisable");
        for name in schema["properties"].as_object().expect("fields").keys() {
            assert!(shown.get(name).is_some(), "the README shows '{name}'");
        }
        let links = shown["links"].as_object().expect("a table");
        let known = &schema["$defs"]["Links"]["properties"];
        assert_eq!(links.len(), known.as_object().expect("fields").len());
        let limits = shown["limits"].as_object().expect("a table");
        let known = &schema["$defs"]["RequestedLimits"]["properties"];
        assert_eq!(limits.len(), known.as_object().expect("fields").len());
    }

    #[test]
    fn the_published_schema_is_that_of_the_structure() {
        let settings = schemars::generate::SchemaSettings::draft2020_12();
        let schema = settings.into_generator().into_root_schema_for::<Manifest>();
        let made = serde_json::Value::from(schema);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/manifest.schema.json");
        if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
            let text = serde_json::to_string_pretty(&made).expect("serialisable");
            std::fs::write(file, text + "\n").expect("the source can be written");
            return;
        }
        // Not as texts: in which order members are written depends on features of other crates.
        let published: serde_json::Value = serde_json::from_str(MANIFEST_SCHEMA).expect("JSON");
        assert_eq!(
            published, made,
            "the structure has changed; write the schema anew: CORRAL_WRITE_SCHEMAS=1 cargo test"
        );
    }
}
