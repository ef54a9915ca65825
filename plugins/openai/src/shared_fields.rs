//! Request fields that several APIs share.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, wrong_type};
use serde_json::Value;

use conversation::{Format, unsupported, without_effect};

/// Fields of vLLM's and llama.cpp's APIs that would change the answer, the only values that are accepted,
/// as JSON, and the reason.
const OTHER_SERVERS: [(&str, &[&str], &str); 13] = [
    ("allowed_token_ids", &["[]"], "use `logit_bias`"),
    ("bad_words", &["[]"], "use `logit_bias`"),
    ("chat_template", &[], "the model's own is used"),
    ("documents", &["[]"], "use `chat_template_kwargs`"),
    (
        "include_stop_str_in_output",
        &["false"],
        "stop strings are never part of an answer",
    ),
    (
        "logits_processors",
        &["[]"],
        "the operator links sampling plugins",
    ),
    ("min_tokens", &["0"], "an answer has no least length"),
    (
        "prompt_logprobs",
        &[],
        "use `echo` and `logprobs` of /v1/completions",
    ),
    ("samplers", &["[]"], "their order is fixed"),
    (
        "skip_special_tokens",
        &["true"],
        "special tokens are never part of an answer",
    ),
    ("stop_token_ids", &["[]"], "use `stop`"),
    ("truncate_prompt_tokens", &[], "prompts are never cut"),
    ("use_beam_search", &["false"], "use `n`"),
];

/// Returns an error if a field of another server's API would change the answer. Call it after the fields
/// that are supported have been read.
pub fn reject_fields_of_other_servers(fields: &mut Fields) -> Result<(), Error> {
    for (name, allowed, why) in OTHER_SERVERS {
        let Some(value) = fields.take(name) else {
            continue;
        };
        if !allowed.contains(&value.to_string().as_str()) {
            return Err(unsupported(&fields.path(name), why));
        }
    }
    Ok(())
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

/// Ignores these fields of the API, each with the reason why it has no effect: the response names those
/// that are present. An error if the request is strict.
pub fn ignore_without_effect(fields: &mut Fields, ignored: &[(&str, &str)]) -> Result<(), Error> {
    for (name, why) in ignored {
        if fields.take(name).is_some() {
            without_effect(&fields.path(name), why)?;
        }
    }
    Ok(())
}

/// Reads the most tokens to generate, under any of these names; -1 stands for the rest of the context. The
/// outer `None`: no name is present. An error if two names have different lengths.
pub fn length(
    fields: &mut Fields,
    names: &[&str],
    least: u32,
) -> Result<Option<Option<u32>>, Error> {
    let mut found: Option<(&str, Option<u32>)> = None;
    for name in names {
        let length = match take_unlimited(fields, name) {
            true => None,
            false => match fields.integer(name, least..=u32::MAX)? {
                Some(length) => Some(length),
                None => continue,
            },
        };
        match found {
            Some((first, other)) if other != length => {
                let why = format!("it is another name of `{first}`, which is present as well");
                return Err(unsupported(name, &why));
            }
            Some(_) => {}
            None => found = Some((name, length)),
        }
    }
    Ok(found.map(|(_, length)| length))
}

/// Removes the field if it is -1, which stands for no limit, as in llama.cpp and vLLM.
fn take_unlimited(fields: &mut Fields, name: &str) -> bool {
    let unlimited = fields.peek(name).and_then(Value::as_i64) == Some(-1);
    unlimited && fields.take(name).is_some()
}

/// Reads a named schema. The answer satisfies it, strict or not; but if it is not strict, keywords that
/// cannot be enforced are ignored. So are `name` and `description`.
pub fn schema_format(mut fields: Fields) -> Result<Format, Error> {
    let schema = fields.required("schema", "a JSON schema")?;
    fields.text("name")?;
    fields.text("description")?;
    let strict = fields.flag("strict")?;
    fields.ignore_unknown(&["name", "description", "schema", "strict"])?;
    schema_of(&fields.path("schema"), schema, strict)
}

/// Reads the schema at `path`.
pub fn schema_of(path: &str, schema: Value, strict: bool) -> Result<Format, Error> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::Schema { schema, strict }),
        other => Err(wrong_type(path, "a JSON schema", &other)),
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

/// The fields that [`stream_options`] reads.
pub const STREAM_FIELDS: [&str; 4] = [
    "stream",
    "stream_options",
    "timings_per_token",
    "return_progress",
];

/// Reads the fields about streams, also those of llama.cpp's server: `None` if not streamed.
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

/// Reads `stream` and `stream_options`, which have no effect on a whole response: `None` if not
/// streamed; otherwise whether the stream ends with the usage.
pub fn stream(fields: &mut Fields) -> Result<Option<bool>, Error> {
    let stream = fields.flag("stream")?;
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then_some(false));
    };
    let usage = options.flag("include_usage")?;
    let path = options.path("include_obfuscation");
    if options.flag("include_obfuscation")? {
        without_effect(&path, "events are not padded")?;
    }
    options.ignore_unknown(&["include_usage", "include_obfuscation"])?;
    Ok(stream.then_some(usage))
}
