//! Command-line arguments.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use corral_sdk::Grammar;
use corral_sdk::template::Chat;

use crate::request::{Input, Request, SPECULATE_LIMIT, Settings};
use crate::sampling::CommonSamplers;

pub const USAGE: &str = "\
usage: generate [OPTIONS] PROMPT...
  --chat             Render PROMPT as a user message with the model's chat template
  --model NAME       Model [default: the first]
  --max-tokens N     Most tokens to generate [default: 128]
  --temperature T    Sampling temperature [default: greedy]
  --top-k N          Keep the N most likely tokens
  --top-p P          Keep the most likely tokens up to the probability P
  --min-p P          Keep tokens at least P times as likely as the most likely one
  --seed N           Random seed [default: random]
  --stop TEXT        Stop before this text; may be repeated
  --ignore-eos       Continue after end-of-generation tokens
  --json             Constrain the text to a JSON object
  --json-schema S    Constrain the text to this JSON schema
  --regex R          Constrain the text to this regular expression
  --lark G           Constrain the text to this Lark grammar, from `start`
  --gbnf G           Constrain the text to this GBNF grammar, from `root`
  --adapter NAME     LoRA adapter [default: none]
  --speculate N      Draft up to N tokens, 0 to 16 [default: as the model's draft model]
";

/// Parses the arguments. Words that are not options form the prompt, joined by spaces; `--` ends
/// the options. Errors are one line.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Request, String> {
    let mut arguments = arguments.into_iter();
    let mut settings = Settings::default();
    let mut samplers = CommonSamplers::default();
    let (mut model, mut chat, mut words) = (None, false, Vec::new());

    while let Some(argument) = arguments.next() {
        if argument == "--" {
            words.extend(arguments.by_ref());
            break;
        }
        if !argument.starts_with("--") {
            words.push(argument);
            continue;
        }
        let (name, mut inline) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let mut value = || {
            let value = inline.take().or_else(|| arguments.next());
            value.ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "--chat" => chat = true,
            "--ignore-eos" => settings.ignore_eos = true,
            "--json" => constrain(&mut settings.constraint, Grammar::JsonObject)?,
            "--model" => model = Some(value()?),
            "--max-tokens" => settings.max_tokens = number(name, &value()?, 1..=u32::MAX)?,
            "--temperature" => {
                samplers.temperature = Some(number(name, &value()?, 0.0..=f32::MAX)?);
            }
            "--top-k" => samplers.top_k = Some(number(name, &value()?, 0..=u32::MAX)?),
            "--top-p" => samplers.top_p = Some(number(name, &value()?, 0.0..=1.0)?),
            "--min-p" => samplers.min_p = Some(number(name, &value()?, 0.0..=1.0)?),
            "--seed" => settings.seed = Some(number(name, &value()?, 0..=u64::MAX)?),
            "--speculate" => {
                settings.speculate = Some(number(name, &value()?, 0..=SPECULATE_LIMIT)?)
            }
            "--adapter" => settings.adapter = Some(value()?),
            "--json-schema" => constrain(&mut settings.constraint, Grammar::JsonSchema(value()?))?,
            "--regex" => constrain(&mut settings.constraint, Grammar::Regex(value()?))?,
            "--lark" => constrain(&mut settings.constraint, Grammar::Lark(value()?))?,
            "--gbnf" => constrain(&mut settings.constraint, Grammar::Gbnf(value()?))?,
            "--stop" => match value()? {
                text if text.is_empty() => {
                    return Err("--stop is empty; expected at least one character".to_owned());
                }
                text => settings.stop.push(text),
            },
            _ => return Err(format!("{name} is not an option; see the usage below")),
        }
        if inline.is_some() {
            return Err(format!("{name} takes no value"));
        }
    }

    settings.samplers = samplers.chain();
    let prompt = words.join(" ");
    if prompt.is_empty() {
        return Err("PROMPT is missing".to_owned());
    }
    let input = if chat {
        Input::Chat(Chat::new().message("user", &prompt))
    } else {
        Input::Prompt(prompt)
    };
    Ok(Request {
        model,
        input,
        settings,
        stream: true,
    })
}

/// Sets the constraint; the host supports one per generation.
fn constrain(constraint: &mut Option<Grammar>, grammar: Grammar) -> Result<(), String> {
    match constraint.replace(grammar) {
        None => Ok(()),
        Some(_) => Err(
            "two constraints are given; expected at most one of --json, --json-schema, --regex, \
             --lark and --gbnf"
                .to_owned(),
        ),
    }
}

fn number<T>(name: &str, text: &str, range: RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    text.parse()
        .ok()
        .filter(|value| range.contains(value))
        .ok_or_else(|| {
            format!(
                "{name} is {text:?}; expected a number from {} to {}",
                range.start(),
                range.end()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sampler;
    use serde_json::json;

    fn arguments(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_and_words_mix() {
        let request =
            arguments("a --top-k 40 b --temperature=0.5 --seed 7 --stop x --stop y").unwrap();
        assert_eq!(request.input, Input::Prompt("a b".to_owned()));
        assert_eq!(
            request.settings,
            Settings {
                samplers: vec![Sampler::TopK(40), Sampler::Temperature(0.5)],
                seed: Some(7),
                stop: vec!["x".to_owned(), "y".to_owned()],
                ..Settings::default()
            }
        );
    }

    #[test]
    fn chat_turns_prompt_into_message() {
        let request =
            arguments("--chat --model m --ignore-eos --max-tokens 3 -- --hello you").unwrap();
        let Input::Chat(chat) = request.input else {
            panic!("not a chat")
        };
        let expected = [json!({"role": "user", "content": "--hello you"})];
        assert_eq!(chat.messages, expected);
        assert_eq!(request.model.as_deref(), Some("m"));
        assert_eq!(request.settings.max_tokens, 3);
        assert!(request.settings.ignore_eos);
    }

    #[test]
    fn constraints_adapters_and_drafts_have_options() {
        let settings = |line: &str| arguments(line).unwrap().settings;
        assert_eq!(
            settings("x --regex [0-9]+ --adapter plus-one --speculate=16"),
            Settings {
                constraint: Some(Grammar::Regex("[0-9]+".to_owned())),
                adapter: Some("plus-one".to_owned()),
                speculate: Some(16),
                ..Settings::default()
            }
        );
        for (line, grammar) in [
            ("x --json", Grammar::JsonObject),
            (
                "x --json-schema={\"const\":1}",
                Grammar::JsonSchema("{\"const\":1}".to_owned()),
            ),
            (
                "x --lark start:\"a\"",
                Grammar::Lark("start:\"a\"".to_owned()),
            ),
            (
                "x --gbnf root::=\"a\"",
                Grammar::Gbnf("root::=\"a\"".to_owned()),
            ),
        ] {
            assert_eq!(settings(line).constraint, Some(grammar), "{line}");
        }
    }

    #[test]
    fn errors_name_the_option() {
        for (line, expected) in [
            ("", "PROMPT is missing"),
            ("--chat", "PROMPT is missing"),
            ("--nope x", "--nope is not an option"),
            ("x --seed", "--seed needs a value"),
            ("x --seed=-1", "--seed is \"-1\""),
            ("x --max-tokens 0", "from 1 to"),
            ("x --temperature nan", "--temperature is \"nan\""),
            ("x --temperature inf", "--temperature is \"inf\""),
            ("x --top-p 1.5", "from 0 to 1"),
            ("x --chat=yes", "--chat takes no value"),
            ("x --stop=", "--stop is empty"),
            ("x --speculate 17", "from 0 to 16"),
            ("x --json=yes", "--json takes no value"),
            ("x --json --regex a", "two constraints"),
            ("x --regex", "--regex needs a value"),
        ] {
            let error = arguments(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
