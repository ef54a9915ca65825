//! Request fields that several APIs share.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, wrong_type};
use serde_json::Value;

use conversation::{Format, unsupported, without_effect};

/// Fields for the API's operator that do not change the response.
const IGNORED_FIELDS: [&str; 5] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Hints of llama.cpp's and vLLM's clients: the scheduler and the prefix cache work without them, and the
/// answer is the same.
pub const HINTS: [&str; 5] = [
    "id_slot",
    "cache_prompt",
    "n_cache_reuse",
    "priority",
    "request_id",
];

/// Drops fields for the API's operator. Returns an error if their values request an unsupported
/// feature.
pub fn drop_operator_fields(fields: &mut Fields) -> Result<(), Error> {
    ignore(fields, &IGNORED_FIELDS);
    let reason = "responses are not stored";
    reject_other_values(fields, "store", &[false.into()], reason)?;
    let tiers = ["auto".into(), "default".into()];
    reject_other_values(fields, "service_tier", &tiers, "there is one service tier")
}

/// Returns an error if one of these fields is present.
pub fn reject(fields: &mut Fields, refused: &[(&str, &str)]) -> Result<(), Error> {
    match refused.iter().find(|(name, _)| fields.take(name).is_some()) {
        Some((name, why)) => Err(unsupported(&fields.path(name), why)),
        None => Ok(()),
    }
}

/// Returns an error if a field has a value other than the allowed ones.
pub fn reject_other_values(
    fields: &mut Fields,
    name: &str,
    allowed: &[Value],
    why: &str,
) -> Result<(), Error> {
    match fields.take(name) {
        Some(value) if !allowed.contains(&value) => {
            Err(unsupported(name, &format!("{why}, but it is {value}")))
        }
        _ => Ok(()),
    }
}

/// Ignores these members of the API, each with the reason why it has no effect: the response names those
/// that are present. An error if the request is strict.
pub fn ignore_without_effect(fields: &mut Fields, members: &[(&str, &str)]) -> Result<(), Error> {
    for (name, why) in members {
        if fields.take(name).is_some() {
            without_effect(&fields.path(name), why)?;
        }
    }
    Ok(())
}

/// Drops fields that do not change the response.
pub fn ignore(fields: &mut Fields, names: &[&str]) {
    for name in names {
        fields.take(name);
    }
}

/// Reads a named schema. The answer always satisfies it, strict or not; `name` and `description`
/// are ignored.
pub fn schema_format(mut fields: Fields) -> Result<Format, Error> {
    let schema = fields.required("schema", "a JSON schema")?;
    fields.text("name")?;
    fields.text("description")?;
    fields.boolean("strict")?;
    fields.ignore_unknown(&["name", "description", "schema", "strict"])?;
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::Schema(schema)),
        other => Err(wrong_type(&fields.path("schema"), "a JSON schema", &other)),
    }
}

/// How to stream a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether the stream ends with the usage.
    pub usage: bool,
    /// Whether each event has the timings so far.
    pub timings: bool,
    /// Whether the first event has the progress of the prompt.
    pub progress: bool,
}

impl StreamOptions {
    /// Whether the plugin writes each event, instead of the host.
    pub fn need_events(self) -> bool {
        self.timings || self.progress
    }
}

/// The members that [`stream_options`] reads.
pub const STREAM_FIELDS: [&str; 4] = [
    "stream",
    "stream_options",
    "timings_per_token",
    "return_progress",
];

/// Reads the members about streams, also those of llama.cpp's server: `None` if not streamed.
pub fn stream_options(fields: &mut Fields) -> Result<Option<StreamOptions>, Error> {
    let timings = fields.flag("timings_per_token")?;
    let progress = fields.flag("return_progress")?;
    let usage = stream(fields)?;
    Ok(usage.map(|usage| StreamOptions {
        usage,
        timings,
        progress,
    }))
}

/// Reads `stream` and `stream_options`: `None` if not streamed; otherwise whether the stream ends
/// with the usage.
pub fn stream(fields: &mut Fields) -> Result<Option<bool>, Error> {
    let stream = fields.flag("stream")?;
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then_some(false));
    };
    if !stream {
        return Err(unsupported("stream_options", "it requires `stream: true`"));
    }
    let usage = options.flag("include_usage")?;
    // Padding against traffic analysis is not supported.
    let path = options.path("include_obfuscation");
    if options.flag("include_obfuscation")? {
        return Err(unsupported(&path, "events are not padded"));
    }
    options.ignore_unknown(&["include_usage", "include_obfuscation"])?;
    Ok(Some(usage))
}
