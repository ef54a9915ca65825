//! How to generate: the members of a request that the two oldest APIs share, and what the host is told.

use corral_sdk::fields::{
    Fields, NOT_NEGATIVE, Numbers, POSITIVE, SHARE, number, out_of_range, wrong_type,
};
use corral_sdk::{Constraint, Error, Generate, Model, Penalties, Token, budget};
use serde_json::Value;

use crate::error::unsupported;

/// As many texts as OpenAI's API generates in a request.
pub const TEXT_LIMIT: u32 = 128;
/// As many stop strings, and as long ones, as the host takes.
const STOP_COUNT_LIMIT: usize = 16;
const STOP_LENGTH_LIMIT: usize = 256;
/// As many tokens as the host takes a bias for.
const BIAS_LIMIT: usize = 1024;
/// As far back as the host looks: frequency and presence count the whole answer, as a rule.
const LOOK_BACK_LIMIT: u32 = 65_536;
/// As far back as llama.cpp looks for tokens that are repeated.
const LOOK_BACK: u32 = 64;

const PENALTY: Numbers = Numbers {
    expected: "a number from -2 to 2",
    fits: |value| (-2.0..=2.0).contains(&value),
};
const BIAS: Numbers = Numbers {
    expected: "a number from -100 to 100",
    fits: |value| (-100.0..=100.0).contains(&value),
};

/// Members that [`Settings::read`] reads.
pub const MEMBERS: [&str; 14] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "logit_bias",
    "seed",
    "stop",
    "ignore_eos",
    "n",
];

/// How to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// As many tokens as there is room for, unless the request says.
    pub max_tokens: Option<u32>,
    pub temperature: f32,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repeat_penalty: f32,
    pub repeat_last: u32,
    pub logit_bias: Vec<(Token, f32)>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_end: bool,
    /// Whether to tell how likely each token was, and how many of the likeliest.
    pub logprobs: Option<u8>,
    /// Texts for each prompt.
    pub n: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_tokens: None,
            // As OpenAI's API has it.
            temperature: 1.0,
            top_p: None,
            top_k: None,
            min_p: None,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_penalty: 1.0,
            repeat_last: LOOK_BACK,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            ignore_end: false,
            logprobs: None,
            n: 1,
        }
    }
}

impl Settings {
    /// Reads all but the length and the probabilities, which the APIs write in different ways.
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let repeat = fields.number("repeat_penalty", &POSITIVE)?;
        // vLLM's name for it.
        let repetition = fields.number("repetition_penalty", &POSITIVE)?;
        if repeat.is_some() && repetition.is_some() {
            let why = "it is another name of `repeat_penalty`, which is given too";
            return Err(unsupported("repetition_penalty", why));
        }
        let usual = Settings::default();
        Ok(Settings {
            temperature: fields
                .number("temperature", &NOT_NEGATIVE)?
                .unwrap_or(usual.temperature),
            top_p: fields.number("top_p", &SHARE)?,
            top_k: fields.integer("top_k", 0..=u32::MAX)?,
            min_p: fields.number("min_p", &SHARE)?,
            frequency_penalty: fields.number("frequency_penalty", &PENALTY)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", &PENALTY)?.unwrap_or(0.0),
            repeat_penalty: repeat.or(repetition).unwrap_or(usual.repeat_penalty),
            repeat_last: fields
                .integer("repeat_last_n", 0..=LOOK_BACK_LIMIT)?
                .unwrap_or(usual.repeat_last),
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            stop: stop(fields, "stop")?,
            ignore_end: fields.flag("ignore_eos")?,
            n: fields.integer("n", 1..=TEXT_LIMIT)?.unwrap_or(1),
            ..usual
        })
    }

    /// The settings as the host takes them, for the `index`-th text of a prompt of so many tokens.
    pub fn how(
        &self,
        model: &Model,
        prompt: u32,
        index: u32,
        constraint: Option<&Constraint>,
    ) -> Result<Generate, Error> {
        let room = model.info().context.saturating_sub(prompt).max(1);
        // Who does not say how much is not refused for asking for more than is left.
        let most = self.max_tokens.unwrap_or_else(|| {
            let left = budget::left().tokens.unwrap_or(u64::MAX);
            let left = left.saturating_sub(prompt.into()) / u64::from(self.n);
            u32::try_from(left).unwrap_or(u32::MAX).max(1)
        });
        let mut how = Generate::new(most.min(room)).stops(&self.stop);
        if let Some(seed) = self.seed {
            how = how.seed(seed.wrapping_add(index.into()));
        }
        if self.ignore_end {
            how = how.ignore_end();
        }
        if !self.logit_bias.is_empty() {
            how = how.logit_bias(&self.known_biases(model)?);
        }
        how = self.penalize(how);
        how = self.sample(how);
        if let Some(constraint) = constraint {
            how = how.constrain(constraint);
        }
        if let Some(top) = self.logprobs {
            how = how.logprobs(top);
        }
        Ok(how)
    }

    fn known_biases(&self, model: &Model) -> Result<Vec<(Token, f32)>, Error> {
        let count = model.info().vocabulary;
        match self.logit_bias.iter().find(|(token, _)| *token >= count) {
            None => Ok(self.logit_bias.clone()),
            Some((token, _)) => {
                let expected = format!("one of the model's {count} tokens, from 0");
                Err(out_of_range("logit_bias", &(*token).into(), &expected))
            }
        }
    }

    fn penalize(&self, mut how: Generate) -> Generate {
        if self.repeat_penalty != 1.0 {
            how = how.penalties(Penalties {
                last: self.repeat_last,
                repeat: self.repeat_penalty,
                frequency: 0.0,
                presence: 0.0,
            });
        }
        if self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 {
            // As in OpenAI's API, what stands in the prompt costs nothing.
            how = how.answer_penalties(Penalties {
                last: LOOK_BACK_LIMIT,
                repeat: 1.0,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
            });
        }
        how
    }

    /// The temperature first, as in OpenAI's API: what is cut off is what is unlikely with it.
    fn sample(&self, how: Generate) -> Generate {
        let mut how = how.temperature(self.temperature);
        if self.temperature == 0.0 {
            return how;
        }
        if let Some(count) = self.top_k {
            how = how.top_k(count);
        }
        if let Some(mass) = self.top_p {
            how = how.top_p(mass);
        }
        if let Some(ratio) = self.min_p {
            how = how.min_p(ratio);
        }
        how
    }
}

/// At most [`TEXT_LIMIT`] texts in a request, of however many prompts.
pub fn check_number_of_texts(prompts: usize, n: u32) -> Result<(), Error> {
    let count = u32::try_from(prompts).unwrap_or(u32::MAX).saturating_mul(n);
    if count <= TEXT_LIMIT {
        return Ok(());
    }
    let text = format!(
        "{prompts} prompts with {n} texts each are {count} texts; a request may ask for {TEXT_LIMIT}"
    );
    let member = if n == 1 { "prompt" } else { "n" };
    Err(Error::bad_request("out-of-range", text).about(member))
}

/// An object from tokens' numbers, as text, to what is added to their logits.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(Token, f32)>, Error> {
    let members = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(members)) => members,
        Some(other) => return Err(wrong_type("logit_bias", "an object", &other)),
    };
    if members.len() > BIAS_LIMIT {
        let text = format!(
            "`logit_bias` has {} members; expected at most {BIAS_LIMIT}",
            members.len()
        );
        return Err(Error::bad_request("out-of-range", text).about("logit_bias"));
    }
    let members = members.iter();
    members
        .map(|(name, value)| {
            let path = format!("logit_bias.{name}");
            // One way to write each number, so that none comes twice.
            let token = name
                .parse()
                .ok()
                .filter(|token: &Token| token.to_string() == *name);
            let token = token.ok_or_else(|| {
                let text = format!("`{path}` names no token; expected its number, such as \"50\"");
                Error::bad_request("out-of-range", text).about("logit_bias")
            })?;
            Ok((token, number(&path, value, &BIAS)?))
        })
        .collect()
}

/// Any integer of 64 bits; those below 0 have seeds of their own.
fn seed(fields: &mut Fields) -> Result<Option<u64>, Error> {
    let Some(value) = fields.take("seed") else {
        return Ok(None);
    };
    let Value::Number(number) = &value else {
        return Err(wrong_type("seed", "an integer", &value));
    };
    let below_0 = || number.as_i64().map(i64::cast_unsigned);
    let seed = number.as_u64().or_else(below_0);
    match seed {
        Some(seed) => Ok(Some(seed)),
        None => Err(out_of_range("seed", &value, "an integer of 64 bits")),
    }
}

/// One stop string or several.
pub fn stop(fields: &mut Fields, name: &str) -> Result<Vec<String>, Error> {
    let texts = match fields.take(name) {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(values)) => values
            .into_iter()
            .enumerate()
            .map(|(index, value)| match value {
                Value::String(text) => Ok(text),
                other => Err(wrong_type(&format!("{name}[{index}]"), "a string", &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => {
            return Err(wrong_type(name, "a string or a list of strings", &other));
        }
    };
    let invalid = |text: String| Err(Error::bad_request("invalid-stop", text).about(name));
    if texts.len() > STOP_COUNT_LIMIT {
        return invalid(format!(
            "`{name}` has {} strings; expected at most {STOP_COUNT_LIMIT}",
            texts.len()
        ));
    }
    match texts
        .iter()
        .find(|text| !(1..=STOP_LENGTH_LIMIT).contains(&text.len()))
    {
        Some(text) => invalid(format!(
            "a string in `{name}` has {} bytes; expected 1 to {STOP_LENGTH_LIMIT}",
            text.len()
        )),
        None => Ok(texts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::json;

    fn read(value: Value) -> Result<Settings, Error> {
        Settings::read(&mut Fields::of("".to_owned(), value).unwrap())
    }

    #[test]
    fn nothing_said_is_sampling_at_1() {
        assert_eq!(read(json!({})).unwrap(), Settings::default());
        assert_eq!(read(json!({"temperature": null})).unwrap().temperature, 1.0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, member, detail) in [
            (json!({"temperature": -1}), "temperature", "at least 0"),
            (json!({"top_p": 1.5}), "top_p", "from 0 to 1"),
            (json!({"top_k": -1}), "top_k", "`top_k` is -1"),
            (
                json!({"frequency_penalty": 2.5}),
                "frequency_penalty",
                "from -2 to 2",
            ),
            (
                json!({"presence_penalty": "x"}),
                "presence_penalty",
                "a string",
            ),
            (json!({"repeat_penalty": 0}), "repeat_penalty", "over 0"),
            (
                json!({"repeat_penalty": 1.1, "repetition_penalty": 1.1}),
                "repetition_penalty",
                "another name",
            ),
            (json!({"logit_bias": [1]}), "logit_bias", "a list"),
            (
                json!({"logit_bias": {"x": 1}}),
                "logit_bias",
                "names no token",
            ),
            (
                json!({"logit_bias": {"01": 1}}),
                "logit_bias",
                "names no token",
            ),
            (
                json!({"logit_bias": {"5": 101}}),
                "logit_bias.5",
                "-100 to 100",
            ),
            (json!({"seed": 1.5}), "seed", "`seed` is 1.5"),
            (json!({"seed": "1"}), "seed", "a string"),
            (json!({"stop": [1]}), "stop[0]", "a number"),
            (json!({"stop": ""}), "stop", "0 bytes"),
            (json!({"stop": vec!["x"; 17]}), "stop", "17 strings"),
            (json!({"n": 0}), "n", "from 1 to 128"),
            (json!({"ignore_eos": 1}), "ignore_eos", "true or false"),
        ] {
            let error = read(body.clone()).unwrap_err();
            assert_eq!(
                (error.status(), error.member()),
                (400, Some(member)),
                "{body}"
            );
            assert!(error.to_string().contains(detail), "{body}: {error}");
        }
        assert!(check_number_of_texts(64, 2).is_ok());
        assert_eq!(
            check_number_of_texts(65, 2).unwrap_err().member(),
            Some("n")
        );
    }

    fn told(body: Value) -> Vec<String> {
        let settings = read(body).unwrap();
        let script = Script::new().answers("a", "b").context(100);
        script.run(async {
            let model = Model::first().await.unwrap();
            let sequence = model.sequence().unwrap();
            sequence.append("a").unwrap();
            let how = settings.how(&model, 1, 2, None).unwrap();
            sequence.generate(&how).unwrap();
        });
        script.generations()[0].settings.clone()
    }

    #[test]
    fn the_host_is_told_all_of_it() {
        assert_eq!(told(json!({})), ["max-tokens 99", "temperature 1"]);
        assert_eq!(
            told(json!({"temperature": 0, "top_p": 0.5, "seed": -1})),
            ["max-tokens 99", "seed 1", "temperature 0"]
        );
        let penalties = |last: u32, repeat: f32, frequency: f32, presence: f32| {
            let penalties = Penalties {
                last,
                repeat,
                frequency,
                presence,
            };
            format!("{penalties:?}")
        };
        assert_eq!(
            told(json!({
                "temperature": 0.5, "top_p": 0.25, "top_k": 4, "min_p": 0.125, "seed": 7,
                "frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.5,
                "repeat_last_n": 5, "logit_bias": {"97": -100}, "stop": ["x", "y"],
                "ignore_eos": true,
            })),
            [
                "max-tokens 99".to_owned(),
                "stop \"x\"".to_owned(),
                "stop \"y\"".to_owned(),
                "seed 9".to_owned(),
                "ignore-end".to_owned(),
                "logit-bias [(97, -100.0)]".to_owned(),
                format!("penalties {}", penalties(5, 1.5, 0.0, 0.0)),
                format!("answer-penalties {}", penalties(65_536, 1.0, 1.0, -1.0)),
                "temperature 0.5".to_owned(),
                "top-k 4".to_owned(),
                "top-p 0.25".to_owned(),
                "min-p 0.125".to_owned(),
            ]
        );
    }

    #[test]
    fn a_quota_bounds_who_does_not_say_how_much() {
        let script = Script::new().budget(Some(21), std::time::Duration::from_secs(1));
        let most = |settings: Settings| {
            script.run(async {
                let model = Model::first().await.unwrap();
                let sequence = model.sequence().unwrap();
                sequence.append("x").unwrap();
                // The script does not know what follows; what it was asked counts.
                let _ = sequence.generate(&settings.how(&model, 1, 0, None).unwrap());
            });
            script.generations().last().unwrap().settings[0].clone()
        };
        let two = Settings {
            n: 2,
            ..Settings::default()
        };
        assert_eq!(most(two.clone()), "max-tokens 10");
        assert_eq!(
            most(Settings {
                max_tokens: Some(50),
                ..two
            }),
            "max-tokens 50"
        );
    }

    #[test]
    fn a_bias_is_for_a_token_that_there_is() {
        let settings = read(json!({"logit_bias": {"259": 1}})).unwrap();
        let how = Script::new().run(async {
            let model = Model::first().await?;
            settings.how(&model, 1, 0, None)
        });
        assert_eq!(how.unwrap_err().member(), Some("logit_bias"));
    }
}
