//! `corral.toml`: an author's description of a deployment.
//!
//! The admin API receives the same structure as JSON, with digests instead of files, and the store holds it.
//! Unknown fields are refused, and so are planned ones: a setting without effect is worse than none.
//! Its JSON Schema, for editors, is a part of `openapi.json`; a test keeps it current.

use super::digest::{Digest, DigestError};
use super::grants::Grants;
use super::linked_components::LinkedComponents;
use super::manifest_error::ManifestError;
use super::name::DeploymentName;
use super::requested_latency::RequestedLatency;
use super::requested_limits::RequestedLimits;
use super::requested_reuse::RequestedReuse;
use crate::cors::Cors;
use crate::problem::ErrorFormat;
use crate::request_policy::Access;
use crate::routes::Route;
use crate::triggers::{CronEntry, JobSettings, MessageSettings, check_settings};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most routes of a deployment.
const MAX_ROUTES: usize = 32;
/// Most models of a deployment.
const MAX_MODELS: usize = 64;
/// Most entries of a configuration.
const MAX_ENTRIES: usize = 64;
/// Longest key of a configuration, in bytes.
const MAX_KEY: usize = 128;
/// Longest value of a configuration, in bytes.
const MAX_VALUE: usize = 8 << 10;

/// Description of a deployment.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Manifest {
    /// Name of the deployment: lower-case letters, digits and '-'.
    pub name: DeploymentName,
    /// The component: a file beside the manifest, or the digest of an uploaded component, 'sha256:' and 64
    /// hexadecimal digits.
    pub component: String,
    /// Path prefixes that the deployment answers, such as '/chat'. They match whole segments; the longest
    /// match wins.
    #[cfg_attr(test, schemars(with = "Vec<String>", length(min = 1, max = 32)))]
    pub routes: Vec<Route>,
    /// Components that the handler is linked with.
    #[serde(default, skip_serializing_if = "LinkedComponents::is_none")]
    pub linked: LinkedComponents,
    /// Models that the plugin may open, the default one first. If omitted, all models of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Format of the host's errors.
    #[serde(default)]
    pub error_format: ErrorFormat,
    /// Origins of the web pages whose scripts may read the responses, such as 'https://app.example', or '*' for
    /// all. If omitted, none, and the plugin answers preflight requests.
    #[cfg_attr(test, schemars(with = "Vec<String>", length(max = 32)))]
    #[serde(default, skip_serializing_if = "Cors::is_off")]
    pub cors: Cors,
    /// 'keys' requires an API key, 'open' does not. If omitted, a key is required if the server has a key
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Priority of its generations: those of a deployment with a higher number always go first.
    #[serde(default)]
    pub priority: u8,
    /// Targets for the gap between tokens and for the first token: 'stream', 'balanced' or 'throughput'; or numbers, the
    /// gap between two tokens and its bound, in decode steps, and milliseconds until the first token, such as
    /// '2,4,2000'. If omitted, the server's.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<RequestedLatency>,
    /// Permissions beyond the models.
    #[serde(default, skip_serializing_if = "Grants::is_none")]
    pub grants: Grants,
    /// Limits. Omitted ones default to the server's.
    #[serde(default, skip_serializing_if = "RequestedLimits::is_none")]
    pub limits: RequestedLimits,
    /// Calls the component's export 'corral:plugin/initialization' once, when it is deployed. Each instance then begins with
    /// the memory that this call left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub initialize: bool,
    /// Lets requests of one tenant reuse an instance, for plugins that start slowly. Its variables keep their values
    /// from one request to the next. If omitted, each request has a new instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<RequestedReuse>,
    /// How it takes jobs at 'POST /jobs/NAME'. If omitted, it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<JobSettings>,
    /// Requests that the host sends on a schedule.
    #[cfg_attr(test, schemars(length(max = 32)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cron: Vec<CronEntry>,
    /// Messages that it gets, which clients send to 'POST /messages/SUBJECT', and plugins publish. If omitted, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<MessageSettings>,
    /// The plugin's environment variables, which 'wasi:config' answers too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads a `corral.toml` and checks it.
    pub fn from_toml(text: &str) -> Result<Self, ManifestError> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Digests of the component and its linked components, in this order, without duplicates.
    ///
    /// # Errors
    /// If a component is named by its file.
    pub fn digests(&self) -> Result<Vec<Digest>, DigestError> {
        let mut digests = vec![self.component.parse()?];
        for digest in self.linked.digests()? {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        Ok(digests)
    }

    /// All components, mutably, each with its field of the manifest, the handler's first.
    pub fn components_mut(&mut self) -> impl Iterator<Item = (String, &mut String)> {
        let linked = self.linked.all_mut();
        let linked =
            linked.map(|(field, linked)| (format!("linked.{field}"), &mut linked.component));
        std::iter::once(("component".to_owned(), &mut self.component)).chain(linked)
    }

    /// Checks what deserialization does not: duplicates, unsupported permissions, and sizes.
    pub fn check(&self) -> Result<(), ManifestError> {
        let refuse = |field: &str, problem: String| Err(ManifestError::field(field, problem));
        if self.component.is_empty() {
            return refuse("component", "is empty; name a .wasm file".to_owned());
        }
        if self.routes.is_empty() || self.routes.len() > MAX_ROUTES {
            let problem = format!(
                "has {} entries; give from 1 to {MAX_ROUTES}, e.g. [\"/chat\"]",
                self.routes.len()
            );
            return refuse("routes", problem);
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.routes.iter().find(|route| !seen.insert(*route)) {
            return refuse("routes", format!("names '{twice}' twice; remove one"));
        }
        ManifestError::check_count("cors", self.cors.count(), Cors::MAX_ORIGINS)?;
        check_settings(&self.routes, self.jobs.as_ref(), &self.cron)?;
        if let Some(messages) = &self.messages {
            messages.check(&self.routes)?;
        }
        self.linked.check()?;
        self.grants.check(&self.configuration)?;
        if let Some(models) = &self.models {
            if models.is_empty() || models.len() > MAX_MODELS {
                let problem = format!(
                    "has {} entries; give from 1 to {MAX_MODELS}, or omit it for all models",
                    models.len()
                );
                return refuse("models", problem);
            }
            let mut seen = BTreeSet::new();
            if let Some(twice) = models.iter().find(|model| !seen.insert(*model)) {
                return refuse("models", format!("names '{twice}' twice; remove one"));
            }
        }
        self.check_configuration()
    }

    fn check_configuration(&self) -> Result<(), ManifestError> {
        let refuse = |field: String, problem: String| Err(ManifestError::field(field, problem));
        ManifestError::check_count("configuration", self.configuration.len(), MAX_ENTRIES)?;
        for (key, value) in &self.configuration {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let valid = key.chars().all(word)
                && key.len() <= MAX_KEY
                && key.starts_with(|c: char| !c.is_ascii_digit());
            if !valid {
                let problem = format!(
                    "is not a valid name of an environment variable; use letters, digits and '_', at most {MAX_KEY}"
                );
                let key: String = key.chars().take(MAX_KEY).collect();
                return refuse(format!("configuration.{}", key.escape_debug()), problem);
            }
            if value.len() > MAX_VALUE || value.contains('\0') {
                let problem = format!(
                    "has a value that is longer than {MAX_VALUE} bytes or holds a zero byte"
                );
                return refuse(format!("configuration.{key}"), problem);
            }
        }
        Ok(())
    }
}

/// The position of the error, and its message on one line.
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
    use crate::api_description::manifest_schema;
    use crate::deployments::{BoundedInteger, BoundedSeconds};

    const FULL: &str = r#"
name = "chat"
component = "chat.wasm"
routes = ["/chat", "/v1/chat"]
models = ["tiny"]
error-format = "openai"
access = "open"
priority = 7
latency = "2,4,1500"

[grants]
share-prefixes = true
key-value-mib = 64
secrets = ["openai-key"]
folders = ["docs"]
outbound = [
  "https://*.example.com",
  { url = "http://127.0.0.1:9000", methods = ["GET", "POST"] },
]

[linked]
templating = "chatml.wasm"

[linked.sampling]
min-p = "min-p.wasm"

[limits]
memory-mib = 32
time-seconds = 20
cpu-seconds = 0.5
request-kib = 64
response-kib = 128
concurrent-requests = 4
queued-requests = 0
queue-time-seconds = 2.5
kv-cells-percent = 25
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
    fn full_manifest_is_read_and_round_trips() {
        let manifest = Manifest::from_toml(FULL).expect("good");
        assert_eq!(manifest.name.as_str(), "chat");
        assert_eq!(manifest.routes[1].as_str(), "/v1/chat");
        assert_eq!(manifest.error_format, ErrorFormat::OpenAi);
        let limits = &manifest.limits;
        assert_eq!(limits.memory_mib.map(|n| n.times(1 << 20)), Some(32 << 20));
        assert_eq!(
            limits.cpu_seconds.map(BoundedSeconds::duration),
            Some(std::time::Duration::from_millis(500))
        );
        assert_eq!(limits.queued_requests.map(BoundedInteger::get), Some(0));
        let json = serde_json::to_string(&manifest).expect("serializable");
        assert_eq!(
            serde_json::from_str::<Manifest>(&json).expect("its own"),
            manifest
        );
    }

    #[test]
    fn omitted_fields_have_defaults() {
        let manifest =
            Manifest::from_toml("name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']").expect("good");
        assert_eq!(manifest.error_format, ErrorFormat::Problem);
        assert_eq!((manifest.priority, manifest.models.as_ref()), (0, None));
        let json = serde_json::to_value(&manifest).expect("serializable");
        let expected = serde_json::json!({
            "name": "a", "component": "a.wasm", "routes": ["/a"], "error-format": "problem",
            "priority": 0,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn mistakes_name_their_position() {
        let head = "name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']\n";
        for (text, expected) in [
            (
                "name = 'a'\n\ncolour = 1\n".to_owned(),
                "line 3, column 1: unknown field `colour`",
            ),
            (
                "name = 'A'\n".to_owned(),
                "line 1, column 8: 'A' is not a valid name",
            ),
            (
                "name = 'a'\ncomponent = 'a'\nroutes = ['/a', 'b']".to_owned(),
                "line 3, column 10: the route 'b' does not start with '/'",
            ),
            ("name = ".to_owned(), "line 1, column 8: "),
            (
                "name = 'a'\ncomponent = 'x'".to_owned(),
                "missing field `routes`",
            ),
            (
                format!("{head}[limits]\n\tmemory-mib = 0\n"),
                "line 5, column 15: 0 is out of range; give an integer from 1 to 4096",
            ),
            (
                format!("{head}[limits]\nqueued-requests = -1\n"),
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
                format!("{head}latency = 'fast'\n"),
                "line 4, column 11: 'fast': expected 'stream', 'balanced', 'throughput', or three numbers",
            ),
            (
                format!("{head}latency = '4,2,2000'\n"),
                "'4,2,2000': the largest gap is below the gap",
            ),
            (
                format!("{head}error-format = 'xml'\n"),
                "line 4, column 16: unknown variant `xml`",
            ),
            (format!("{head}models = []\n"), "'models' has 0 entries"),
            (format!("{head}models = ['a', 'a']\n"), "names 'a' twice"),
            (
                format!("{head}[linked]\n'a:b/c' = 'd.wasm'\n"),
                "line 5, column 1: unknown field `a:b/c`",
            ),
            (
                format!("{head}[configuration]\n'a b' = 'c'\n"),
                "configuration.a b' is not a valid name",
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
    fn documented_manifest_is_valid_and_complete() {
        let guide = include_str!("../../../../docs/deployments.md");
        let (_, from) = guide.split_once("```toml\n").expect("it has one");
        let (text, _) = from.split_once("```").expect("it ends");
        let manifest = Manifest::from_toml(text).expect("good");
        let schema = manifest_schema();
        let shown = serde_json::to_value(&manifest).expect("serializable");
        for name in schema["properties"].as_object().expect("fields").keys() {
            assert!(shown.get(name).is_some(), "the guide shows '{name}'");
        }
        let linked = shown["linked"].as_object().expect("a table");
        let known = &schema["$defs"]["LinkedComponents"]["properties"];
        assert_eq!(linked.len(), known.as_object().expect("fields").len());
        let limits = shown["limits"].as_object().expect("a table");
        let known = &schema["$defs"]["RequestedLimits"]["properties"];
        assert_eq!(limits.len(), known.as_object().expect("fields").len());
    }

    #[test]
    fn manifest_schema_matches_the_type() {
        if std::env::var_os("CORRAL_WRITE_SCHEMAS").is_some() {
            // `openapi.json` is being written.
            return;
        }
        let settings = schemars::generate::SchemaSettings::draft2020_12();
        let schema = settings.into_generator().into_root_schema_for::<Manifest>();
        assert_eq!(
            manifest_schema(),
            serde_json::Value::from(schema),
            "the type has changed; regenerate openapi.json: CORRAL_WRITE_SCHEMAS=1 cargo test"
        );
    }
}
