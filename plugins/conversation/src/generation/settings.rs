//! Generation settings: the fields that chat completions, completions and responses share.

use corral_sdk::fields::{
    Fields, NON_NEGATIVE, NumberRange, POSITIVE, ZERO_TO_ONE, number, out_of_range, wrong_type,
};
use corral_sdk::{Constraint, Error, GenerateOptions, Model, Penalties, Token, budget};
use serde_json::Value;

use crate::unsupported;

/// Most choices of a request, as in OpenAI's API.
pub const CHOICE_LIMIT: u32 = 128;
/// The host's limit for biased tokens.
const BIAS_LIMIT: usize = 1024;
/// The host's limit. Frequency and presence penalties consider the whole answer.
const LOOK_BACK_LIMIT: u32 = 65_536;
/// The default of llama.cpp for `repeat_penalty`.
const LOOK_BACK: u32 = 64;

const PENALTY: NumberRange = NumberRange {
    expected: "a number from -2 to 2",
    contains: |value| (-2.0..=2.0).contains(&value),
};
const BIAS: NumberRange = NumberRange {
    expected: "a number from -100 to 100",
    contains: |value| (-100.0..=100.0).contains(&value),
};

/// The fields that [`Settings::read`] reads.
pub const FIELDS: [&str; 14] = [
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

/// Generation settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Default: the remaining context.
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
    /// Whether to return log probabilities, and of how many most likely tokens.
    pub logprobs: Option<u8>,
    /// Choices per prompt.
    pub n: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_tokens: None,
            // The default of OpenAI's API.
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
    /// Reads all settings but the length and logprobs, whose fields differ between the APIs.
    pub fn read(fields: &mut Fields) -> Result<Self, Error> {
        let repeat = fields.number("repeat_penalty", &POSITIVE)?;
        // vLLM's name for it.
        let repetition = fields.number("repetition_penalty", &POSITIVE)?;
        if repeat.is_some() && repetition.is_some() {
            let why = "it is another name of `repeat_penalty`, which is present as well";
            return Err(unsupported("repetition_penalty", why));
        }
        let defaults = Settings::default();
        Ok(Settings {
            temperature: fields
                .number("temperature", &NON_NEGATIVE)?
                .unwrap_or(defaults.temperature),
            top_p: fields.number("top_p", &ZERO_TO_ONE)?,
            top_k: fields.integer("top_k", 0..=u32::MAX)?,
            min_p: fields.number("min_p", &ZERO_TO_ONE)?,
            frequency_penalty: fields.number("frequency_penalty", &PENALTY)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", &PENALTY)?.unwrap_or(0.0),
            repeat_penalty: repeat.or(repetition).unwrap_or(defaults.repeat_penalty),
            repeat_last: fields
                .integer("repeat_last_n", 0..=LOOK_BACK_LIMIT)?
                .unwrap_or(defaults.repeat_last),
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            stop: fields.stop_strings("stop")?,
            ignore_end: fields.flag("ignore_eos")?,
            n: fields.integer("n", 1..=CHOICE_LIMIT)?.unwrap_or(1),
            ..defaults
        })
    }

    /// Converts the settings to the host's options, for choice `index` of a prompt of `prompt`
    /// tokens.
    pub fn options(
        &self,
        model: &Model,
        prompt: u32,
        index: u32,
        constraint: Option<&Constraint>,
    ) -> Result<GenerateOptions, Error> {
        let remaining = model.info().context.saturating_sub(prompt).max(1);
        // Without an explicit length, the quota limits the length instead of refusing the request.
        let max_tokens = self.max_tokens.unwrap_or_else(|| {
            let quota = budget::remaining().tokens.unwrap_or(u64::MAX);
            let quota = quota.saturating_sub(prompt.into()) / u64::from(self.n);
            u32::try_from(quota).unwrap_or(u32::MAX).max(1)
        });
        let mut options = GenerateOptions::new(max_tokens.min(remaining)).stops(&self.stop);
        if let Some(seed) = self.seed {
            options = options.seed(seed.wrapping_add(index.into()));
        }
        if self.ignore_end {
            options = options.ignore_eos();
        }
        if !self.logit_bias.is_empty() {
            options = options.logit_bias(&self.checked_biases(model)?);
        }
        options = self.add_penalties(options);
        options = self.add_samplers(options);
        if let Some(constraint) = constraint {
            options = options.constrain(constraint);
        }
        if let Some(top) = self.logprobs {
            options = options.logprobs(top);
        }
        Ok(options)
    }

    fn checked_biases(&self, model: &Model) -> Result<Vec<(Token, f32)>, Error> {
        let count = model.info().vocabulary;
        match self.logit_bias.iter().find(|(token, _)| *token >= count) {
            None => Ok(self.logit_bias.clone()),
            Some((token, _)) => {
                let expected = format!("a token id below {count}");
                Err(out_of_range("logit_bias", &(*token).into(), &expected))
            }
        }
    }

    fn add_penalties(&self, mut options: GenerateOptions) -> GenerateOptions {
        if self.repeat_penalty != 1.0 {
            options = options.penalties(Penalties {
                last_n: self.repeat_last,
                repeat: self.repeat_penalty,
                frequency: 0.0,
                presence: 0.0,
            });
        }
        if self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 {
            // As in OpenAI's API, tokens of the prompt are not penalized.
            options = options.output_penalties(Penalties {
                last_n: LOOK_BACK_LIMIT,
                repeat: 1.0,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
            });
        }
        options
    }

    /// Temperature comes first, as in OpenAI's API: the filters apply to the tempered distribution.
    fn add_samplers(&self, options: GenerateOptions) -> GenerateOptions {
        let mut options = options.temperature(self.temperature);
        if self.temperature == 0.0 {
            return options;
        }
        if let Some(count) = self.top_k {
            options = options.top_k(count);
        }
        if let Some(mass) = self.top_p {
            options = options.top_p(mass);
        }
        if let Some(ratio) = self.min_p {
            options = options.min_p(ratio);
        }
        options
    }
}

/// Checks that a request has at most [`CHOICE_LIMIT`] choices over all prompts.
pub fn check_choice_count(prompts: usize, n: u32) -> Result<(), Error> {
    let count = u32::try_from(prompts).unwrap_or(u32::MAX).saturating_mul(n);
    if count <= CHOICE_LIMIT {
        return Ok(());
    }
    let text = format!(
        "{prompts} prompts with {n} choices each are {count} choices; expected at most {CHOICE_LIMIT}"
    );
    let field = if n == 1 { "prompt" } else { "n" };
    Err(Error::bad_request("out-of-range", text).with_field(field))
}

/// Reads an object from token ids, as strings, to biases.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(Token, f32)>, Error> {
    let biases = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(biases)) => biases,
        Some(other) => return Err(wrong_type("logit_bias", "an object", &other)),
    };
    if biases.len() > BIAS_LIMIT {
        let text = format!(
            "`logit_bias` has {} entries; expected at most {BIAS_LIMIT}",
            biases.len()
        );
        return Err(Error::bad_request("out-of-range", text).with_field("logit_bias"));
    }
    let biases = biases.iter();
    biases
        .map(|(name, value)| {
            let path = format!("logit_bias.{name}");
            // Only the canonical form of a number, so that no token occurs twice.
            let token = name
                .parse()
                .ok()
                .filter(|token: &Token| token.to_string() == *name);
            let token = token.ok_or_else(|| {
                let text = format!("`{path}` is not a token id; expected a number such as \"50\"");
                Error::bad_request("out-of-range", text).with_field("logit_bias")
            })?;
            Ok((token, number(&path, value, &BIAS)?))
        })
        .collect()
}

/// Reads any 64-bit integer; negative ones have distinct seeds.
fn seed(fields: &mut Fields) -> Result<Option<u64>, Error> {
    let Some(value) = fields.take("seed") else {
        return Ok(None);
    };
    let Value::Number(number) = &value else {
        return Err(wrong_type("seed", "an integer", &value));
    };
    let negative = || number.as_i64().map(i64::cast_unsigned);
    let seed = number.as_u64().or_else(negative);
    match seed {
        Some(seed) => Ok(Some(seed)),
        None => Err(out_of_range("seed", &value, "an integer of 64 bits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    fn read(value: Value) -> Result<Settings, Error> {
        Settings::read(&mut Fields::at(String::new(), value)?)
    }

    #[test]
    fn default_temperature_is_1() {
        assert_eq!(read(json!({})).unwrap(), Settings::default());
        assert_eq!(read(json!({"temperature": null})).unwrap().temperature, 1.0);
    }

    /// Settings, and the field and text of their error.
    const ERRORS: &str = r#"
{"temperature": -1} => temperature: at least 0
{"top_p": 1.5} => top_p: from 0 to 1
{"top_k": -1} => top_k: `top_k` is -1
{"frequency_penalty": 2.5} => frequency_penalty: from -2 to 2
{"presence_penalty": "x"} => presence_penalty: a string
{"repeat_penalty": 0} => repeat_penalty: greater than 0
{"repeat_penalty": 1.1, "repetition_penalty": 1.1} => repetition_penalty: another name
{"logit_bias": [1]} => logit_bias: a list
{"logit_bias": {"x": 1}} => logit_bias: is not a token id
{"logit_bias": {"01": 1}} => logit_bias: is not a token id
{"logit_bias": {"5": 101}} => logit_bias.5: -100 to 100
{"seed": 1.5} => seed: `seed` is 1.5
{"seed": "1"} => seed: a string
{"stop": [1]} => stop[0]: a number
{"stop": ""} => stop: 0 bytes
{"n": 0} => n: from 1 to 128
{"ignore_eos": 1} => ignore_eos: true or false
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, read);
        let stops = read(json!({"stop": vec!["x"; 17]})).unwrap_err();
        assert!(stops.to_string().contains("17 strings"), "{stops}");
        assert!(check_choice_count(64, 2).is_ok());
        assert_eq!(check_choice_count(65, 2).unwrap_err().field(), Some("n"));
    }

    fn host_settings(body: Value) -> Vec<String> {
        let settings = read(body).unwrap();
        let script = Script::new().answers("a", "b").context(100);
        script.run(async {
            let model = Model::open_default().await.unwrap();
            let sequence = model.sequence().unwrap();
            sequence.append("a").unwrap();
            let options = settings.options(&model, 1, 2, None).unwrap();
            sequence.generate(&options).unwrap();
        });
        script.generations()[0].settings.clone()
    }

    #[test]
    fn all_settings_reach_the_host() {
        assert_eq!(host_settings(json!({})), ["max-tokens 99", "temperature 1"]);
        assert_eq!(
            host_settings(json!({"temperature": 0, "top_p": 0.5, "seed": -1})),
            ["max-tokens 99", "seed 1", "temperature 0"]
        );
        let penalties = |last_n: u32, repeat: f32, frequency: f32, presence: f32| {
            let penalties = Penalties {
                last_n,
                repeat,
                frequency,
                presence,
            };
            format!("{penalties:?}")
        };
        assert_eq!(
            host_settings(json!({
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
                "ignore-eos".to_owned(),
                "logit-bias [(97, -100.0)]".to_owned(),
                format!("penalties {}", penalties(5, 1.5, 0.0, 0.0)),
                format!("output-penalties {}", penalties(65_536, 1.0, 1.0, -1.0)),
                "temperature 0.5".to_owned(),
                "top-k 4".to_owned(),
                "top-p 0.25".to_owned(),
                "min-p 0.125".to_owned(),
            ]
        );
    }

    #[test]
    fn quota_limits_the_default_length() {
        let script = Script::new().budget(Some(21), std::time::Duration::from_secs(1));
        let most = |settings: Settings| {
            script.run(async {
                let model = Model::open_default().await.unwrap();
                let sequence = model.sequence().unwrap();
                sequence.append("x").unwrap();
                // The script has no answer; only the settings matter.
                let _ = sequence.generate(&settings.options(&model, 1, 0, None).unwrap());
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
    fn bias_for_unknown_token_is_rejected() {
        let settings = read(json!({"logit_bias": {"259": 1}})).unwrap();
        let options = Script::new().run(async {
            let model = Model::open_default().await?;
            settings.options(&model, 1, 0, None)
        });
        assert_eq!(options.unwrap_err().field(), Some("logit_bias"));
    }
}
