//! Scripts as JSON, with the names and the meaning of `corral_sdk::testing::Script`.
//!
//! ```json
//! {
//!   "answers": {"12+7=": "19", "2+2=": "4"},
//!   "next": {"Yes or no? ": {"y": 2.0, "n": 1.0}},
//!   "fails": [{"function": "open", "error": {"refused": {"reason": "the queue is full", "retry_after_ms": 500}}}]
//! }
//! ```
//!
//! All members are optional, and others are an error.

use std::collections::BTreeMap;
use std::time::Duration;

use corral_sdk::Error;
use corral_sdk::model::RequestCounts;
use corral_sdk::testing::Script;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ScriptFile {
    /// The model's name; `script` by default.
    name: Option<String>,
    context: Option<u32>,
    can_fork: Option<bool>,
    chat_template: Option<String>,
    /// Control tokens beside `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
    control_tokens: Vec<String>,
    /// The beginning-of-sequence token.
    begin_token: Option<String>,
    adapters: Vec<String>,
    /// The texts that the model generates after a text.
    answers: BTreeMap<String, String>,
    /// Generations that fail after a text.
    fails_after: Vec<FailedAnswer>,
    /// The logits of the next token after a text. Others are -30.
    next: BTreeMap<String, BTreeMap<String, f32>>,
    /// Functions whose next call fails.
    fails: Vec<FailedCall>,
    embeddings: BTreeMap<String, Vec<f32>>,
    /// The texts that a grammar allows.
    grammars: BTreeMap<String, Vec<String>>,
    /// The keywords that a grammar ignores.
    ignores: BTreeMap<String, Vec<String>>,
    budget: Option<Budget>,
    /// How many requests run and wait; none by default.
    request_counts: Option<ScriptedCounts>,
    /// More models, each with its own `name`.
    other_models: Vec<ScriptFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailedAnswer {
    after: String,
    #[serde(default)]
    text: String,
    error: ScriptedError,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailedCall {
    function: String,
    error: ScriptedError,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    tokens: Option<u64>,
    seconds: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCounts {
    running: u32,
    waiting: u32,
    max_running: u32,
}

/// An error of the WIT.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScriptedError {
    Invalid(String),
    NotFound(String),
    NotGranted(String),
    ContextFull { needed: u32, limit: u32 },
    Refused { reason: String, retry_after_ms: u32 },
    Deadline,
    Cancelled,
    Failed(String),
}

/// Reads a script. The error says what is wrong, and where.
pub(crate) fn parse(text: &str) -> Result<Script, String> {
    let file = serde_json::from_str(text).map_err(|error| error.to_string())?;
    build(file)
}

fn build(file: ScriptFile) -> Result<Script, String> {
    let mut script = Script::new().info(|info| {
        info.name = file.name.unwrap_or_else(|| info.name.clone());
        info.context = file.context.unwrap_or(info.context);
        info.can_fork = file.can_fork.unwrap_or(info.can_fork);
        info.chat_template = file.chat_template;
        info.adapters = file.adapters;
    });
    let mut control = Vec::from(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    for name in file.control_tokens {
        script = script.control_token(&name);
        control.push(name);
    }
    let is_token = |text: &str| text.len() == 1 || control.iter().any(|name| name == text);
    let check_token = |text: &str| match is_token(text) {
        true => Ok(()),
        false => Err(format!(
            "{text:?} is not one token; expected a byte or one of the control tokens {control:?}"
        )),
    };
    if let Some(name) = file.begin_token {
        check_token(&name)?;
        script = script.begin_token(&name);
    }
    for (after, text) in file.answers {
        script = script.answers(&after, &text);
    }
    for FailedAnswer { after, text, error } in file.fails_after {
        script = script.fails_after(&after, &text, error.into());
    }
    for (after, logits) in file.next {
        logits.keys().try_for_each(|text| check_token(text))?;
        let logits = logits.iter().map(|(text, logit)| (text.as_str(), *logit));
        script = script.next(&after, &logits.collect::<Vec<_>>());
    }
    for FailedCall { function, error } in file.fails {
        if !Script::FALLIBLE_FUNCTIONS.contains(&function.as_str()) {
            return Err(format!(
                "{function:?} is not a function that can fail; expected one of {:?}",
                Script::FALLIBLE_FUNCTIONS
            ));
        }
        script = script.fails(&function, error.into());
    }
    for (text, vector) in file.embeddings {
        script = script.embedding(&text, &vector);
    }
    for (grammar, texts) in file.grammars {
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        script = script.grammar(&grammar, &texts);
    }
    for (grammar, keywords) in file.ignores {
        let keywords: Vec<_> = keywords.iter().map(String::as_str).collect();
        script = script.ignores(&grammar, &keywords);
    }
    if let Some(Budget { tokens, seconds }) = file.budget {
        let time = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
        script = script.budget(tokens, time);
    }
    if let Some(counts) = file.request_counts {
        script = script.request_counts(RequestCounts {
            running: counts.running,
            waiting: counts.waiting,
            max_running: counts.max_running,
        });
    }
    for other in file.other_models {
        script = script.other_model(&build(other)?);
    }
    Ok(script)
}

impl From<ScriptedError> for Error {
    fn from(error: ScriptedError) -> Self {
        match error {
            ScriptedError::Invalid(text) => Error::Invalid(text),
            ScriptedError::NotFound(text) => Error::NotFound(text),
            ScriptedError::NotGranted(text) => Error::NotGranted(text),
            ScriptedError::ContextFull { needed, limit } => Error::ContextFull { needed, limit },
            ScriptedError::Refused {
                reason,
                retry_after_ms,
            } => Error::Refused {
                reason,
                retry_after: Duration::from_millis(retry_after_ms.into()),
            },
            ScriptedError::Deadline => Error::Deadline,
            ScriptedError::Cancelled => Error::Cancelled,
            ScriptedError::Failed(text) => Error::Failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::{GenerateOptions, Model};

    #[test]
    fn script_has_the_meaning_of_the_sdk() {
        let text = r#"{
            "name": "mock", "context": 64, "answers": {"12+7=": "19"},
            "request_counts": {"running": 2, "waiting": 1, "max_running": 4},
            "fails_after": [{"after": "2+2=", "text": "4", "error": "deadline"}],
            "next": {"?": {"y": 2, "<|im_end|>": 1}},
            "fails": [{"function": "embed", "error": {"refused": {"reason": "full", "retry_after_ms": 5}}}],
            "other_models": [{"name": "large", "answers": {"a": "b"}}]
        }"#;
        let script = parse(text).unwrap();
        script.run(async {
            assert_eq!(Model::available(), ["mock", "large"]);
            let model = Model::open_default().await.unwrap();
            assert_eq!(model.info().context, 64);
            let expected = RequestCounts {
                running: 2,
                waiting: 1,
                max_running: 4,
            };
            assert_eq!(model.request_counts(), Ok(expected));
            for (prompt, expected) in [
                ("12+7=", Ok("19".to_owned())),
                ("2+2=", Err(Error::Deadline)),
            ] {
                let sequence = model.sequence().unwrap();
                sequence.append(prompt).unwrap();
                let generation = sequence.generate(&GenerateOptions::new(8)).unwrap();
                assert_eq!(generation.text().await, expected);
            }
            let refused = model.embed(&["x"]).await.unwrap_err();
            assert_eq!(refused.status(), 429);
        });
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("{", "EOF"),
            (r#"{"answer": {}}"#, "unknown field `answer`"),
            (r#"{"next": {"a": {"bc": 1}}}"#, "\"bc\" is not one token"),
            (
                r#"{"fails": [{"function": "fly", "error": "deadline"}]}"#,
                "expected one of [\"open\"",
            ),
            (r#"{"budget": {"seconds": -1}}"#, "negative"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
