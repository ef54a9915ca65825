//! Request fields that chat and generate share.

use corral_sdk::fields::{Fields, ignored, out_of_range};
use corral_sdk::{Error, Model};
use serde_json::{Value, json};

use conversation::generation::Settings;
use conversation::generation::settings::{LlamaSamplers, logprobs};
use conversation::{Format, TemplateKwarg, TemplateKwargs};

/// Ollama's defaults.
const DEFAULTS: [(&str, f64); 5] = [
    ("temperature", 0.8),
    ("top_k", 40.0),
    ("top_p", 0.9),
    ("repeat_penalty", 1.1),
    ("repeat_last_n", 64.0),
];

/// The fields of both, checked.
pub struct SharedMembers {
    /// The client's name of the model.
    pub name: String,
    pub settings: Settings,
    pub format: Format,
    pub think: Option<Think>,
    pub stream: bool,
}

/// Whether and how much the model should reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Think {
    Yes,
    No,
    /// An effort, such as `low`.
    Level(String),
}

impl SharedMembers {
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let name = crate::models::read_name(fields)?;
        let options = fields.object("options")?;
        let mut settings = match options {
            Some(options) => settings(options)?,
            None => settings(Fields::at("options".to_owned(), json!({}))?)?,
        };
        settings.logprobs = logprobs(fields)?;
        // The host keeps its models.
        fields.take("keep_alive");
        Ok(SharedMembers {
            name,
            settings,
            format: format(fields)?,
            think: think(fields)?,
            stream: fields.boolean("stream")?.unwrap_or(true),
        })
    }
}

/// Reads `options`. Those that concern Ollama's own engine, such as `num_gpu`, and unknown ones are
/// ignored, as Ollama does, and named in the response.
fn settings(mut options: Fields) -> Result<Settings, Error> {
    let length = options.integer("num_predict", i64::MIN..=i64::from(u32::MAX))?;
    let seed = options.integer("seed", i64::MIN..=i64::MAX)?;
    let mut members = options.into_map();
    // Fields of the reader that Ollama does not have.
    for other in [
        "n",
        "logit_bias",
        "ignore_eos",
        "repetition_penalty",
        "lora",
    ] {
        if members.remove(other).is_some_and(|value| !value.is_null()) {
            ignored::add(&format!("options.{other}"));
        }
    }
    for (name, default) in DEFAULTS {
        let member = members.entry(name).or_insert(Value::Null);
        if member.is_null() {
            *member = match default.fract() == 0.0 {
                true => json!(default as i64),
                false => json!(default),
            };
        }
    }
    // A negative seed asks for a random one.
    if let Some(seed) = seed.filter(|seed| *seed >= 0) {
        members.insert("seed".to_owned(), seed.into());
    }
    let mut members = Fields::at("options".to_owned(), members.into())?;
    let mut settings = Settings::read(&mut members)?;
    members.ignore_unknown(&[])?;
    if settings.llama_samplers.is_none() {
        // The samplers have llama.cpp's order.
        settings.llama_samplers = Some(LlamaSamplers::off()?);
    }
    if settings.repeat_last == 0 {
        settings.repeat_penalty = 1.0;
    }
    // A negative length means as long as the context allows. Ollama takes 0 for no answer at all; at
    // least one token is generated here.
    settings.max_tokens = length.and_then(|length| u32::try_from(length).ok());
    settings.max_tokens = settings.max_tokens.map(|length| length.max(1));
    Ok(settings)
}

/// Reads `format`: `"json"`, or a JSON schema.
fn format(fields: &mut Fields) -> Result<Format, Error> {
    match fields.take("format") {
        None => Ok(Format::Text),
        Some(Value::String(text)) if text.is_empty() => Ok(Format::Text),
        Some(Value::String(text)) if text == "json" => Ok(Format::JsonObject),
        Some(schema @ Value::Object(_)) => Ok(Format::Schema {
            schema,
            strict: false,
        }),
        Some(other) => Err(out_of_range("format", &other, "\"json\" or a JSON schema")),
    }
}

fn think(fields: &mut Fields) -> Result<Option<Think>, Error> {
    match fields.take("think") {
        None => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(Think::Yes)),
        Some(Value::Bool(false)) => Ok(Some(Think::No)),
        Some(Value::String(level)) if ["low", "medium", "high"].contains(&level.as_str()) => {
            Ok(Some(Think::Level(level)))
        }
        Some(other) => {
            let expected = "true, false, \"low\", \"medium\" or \"high\"";
            Err(out_of_range("think", &other, expected))
        }
    }
}

/// The template's variables for reasoning; an error if the model cannot reason but is asked to.
pub fn reasoning_variables(
    think: Option<&Think>,
    name: &str,
    model: &Model,
) -> Result<TemplateKwargs, Error> {
    let template = model.info().chat_template.as_deref().unwrap_or_default();
    let Some(think) = think else {
        return Ok(TemplateKwargs::default());
    };
    if *think != Think::No && !template.contains("</think>") {
        // Clients look for these words.
        let text = format!("\"{name}\" does not support thinking; expected no `think`, or false");
        return Err(Error::bad_request("unsupported", text).with_field("think"));
    }
    let mut variables = Vec::new();
    let mut add = |name: &str, value: Value| {
        if template.contains(name) {
            variables.push(TemplateKwarg {
                name: name.to_owned(),
                value,
                field: "think".to_owned(),
            });
        }
    };
    add("enable_thinking", (*think != Think::No).into());
    if let Think::Level(level) = think {
        add("reasoning_effort", level.as_str().into());
    }
    Ok(TemplateKwargs(variables))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::check_field_errors;

    fn read(options: Value) -> Result<Settings, Error> {
        settings(Fields::at("options".to_owned(), options)?)
    }

    #[test]
    fn defaults_are_those_of_ollama() {
        let settings = read(json!({})).unwrap();
        assert_eq!(settings.temperature, 0.8);
        assert_eq!(settings.top_k, Some(40));
        assert_eq!(settings.top_p, Some(0.9));
        assert_eq!((settings.repeat_penalty, settings.repeat_last), (1.1, 64));
        assert_eq!(settings.max_tokens, None);
    }

    #[test]
    fn negative_numbers_have_meanings() {
        let settings = read(json!({"num_predict": -1, "seed": -1, "repeat_last_n": -1})).unwrap();
        assert_eq!((settings.max_tokens, settings.seed), (None, None));
        assert_eq!(settings.repeat_last, 65_536);
        let settings = read(json!({"num_predict": 5, "seed": 7, "repeat_last_n": 0})).unwrap();
        assert_eq!((settings.max_tokens, settings.seed), (Some(5), Some(7)));
        assert_eq!(settings.repeat_penalty, 1.0);
    }

    #[test]
    fn options_of_the_engine_are_ignored() {
        let options = json!({"num_ctx": 8192, "num_gpu": 1, "use_mmap": true, "n": 3, "nope": {}});
        ignored::begin(false);
        assert_eq!(read(json!({"n": null})).unwrap(), read(json!({})).unwrap());
        assert_eq!(ignored::header_value(), None);
        assert_eq!(read(options).unwrap(), read(json!({})).unwrap());
        let names = ignored::header_value().unwrap();
        for name in ["num_ctx", "num_gpu", "use_mmap", "n", "nope"] {
            assert!(names.contains(&format!("options.{name}")), "{names}");
        }
    }

    #[test]
    fn errors_name_the_option() {
        let table = r#"
{"temperature": -1} => options.temperature: at least 0
{"num_predict": "x"} => options.num_predict: a string
{"stop": 1} => options.stop: a number
"#;
        check_field_errors(table, read);
        let with = |body: Value| {
            let mut fields = Fields::at(String::new(), body)?;
            SharedMembers::read(&mut fields)
        };
        let table = r#"
{} => model: is missing
{"model": "m", "format": "xml"} => format: a JSON schema
{"model": "m", "think": "a lot"} => think: "medium"
{"model": "m", "options": []} => options: a list
{"model": "m", "logprobs": 1} => logprobs: true or false
{"model": "m", "logprobs": true, "top_logprobs": 21} => top_logprobs: to 20
"#;
        check_field_errors(table, with);
    }
}
