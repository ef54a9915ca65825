//! Request fields that several APIs share.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, wrong_type};
use serde_json::Value;

use conversation::Format;
use conversation::unsupported;

/// Fields for the API's operator that do not change the response.
const IGNORED_FIELDS: [&str; 5] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
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
    fields.reject_unknown(&["name", "description", "schema", "strict"])?;
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::Schema(schema)),
        other => Err(wrong_type(&fields.path("schema"), "a JSON schema", &other)),
    }
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
    options.reject_unknown(&["include_usage", "include_obfuscation"])?;
    Ok(Some(usage))
}
