//! Generation settings: the fields that chat completions, completions and responses share.

use corral_sdk::fields::{
    Fields, NON_NEGATIVE, NumberRange, POSITIVE, ZERO_TO_ONE, out_of_range, wrong_type,
};
use corral_sdk::{Constraint, Error, GenerateOptions, Model, Penalties, budget};
use serde_json::Value;

use super::LogitBias;
use crate::{unsupported, without_effect};

mod adapter;
mod samplers;

pub use samplers::{LlamaSamplers, shortest};

/// Most choices of a request, as in OpenAI's API.
pub const CHOICE_LIMIT: u32 = 128;
/// The most tokens whose log probabilities a response has beside each of its own: the host's limit.
pub const LOGPROBS_LIMIT: u8 = 20;
/// The host's limit. Frequency and presence penalties consider the whole answer.
const LOOK_BACK_LIMIT: u32 = 65_536;
/// The default of llama.cpp for `repeat_penalty`.
const LOOK_BACK: u32 = 64;

const PENALTY: NumberRange = NumberRange {
    expected: "a number from -2 to 2",
    contains: |value| (-2.0..=2.0).contains(&value),
};

/// The fields that [`Settings::read`] reads.
pub const FIELDS: [&str; COMMON_FIELDS.len() + samplers::FIELDS.len()] = {
    let mut all = [""; COMMON_FIELDS.len() + samplers::FIELDS.len()];
    let (common, rest) = all.split_at_mut(COMMON_FIELDS.len());
    common.copy_from_slice(&COMMON_FIELDS);
    rest.copy_from_slice(&samplers::FIELDS);
    all
};

const COMMON_FIELDS: [&str; 15] = [
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
    "lora",
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
    /// Present if the request has any of their fields.
    pub llama_samplers: Option<LlamaSamplers>,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repeat_penalty: f32,
    pub repeat_last: u32,
    pub logit_bias: LogitBias,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// Whether to return log probabilities, and of how many most likely tokens.
    pub logprobs: Option<u8>,
    /// Choices per prompt.
    pub n: u32,
    /// The LoRA adapter, by its place in the model's list.
    pub adapter: Option<u32>,
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
            llama_samplers: None,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_penalty: 1.0,
            repeat_last: LOOK_BACK,
            logit_bias: LogitBias::default(),
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            n: 1,
            adapter: None,
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
            top_k: top_k(fields)?,
            min_p: fields.number("min_p", &ZERO_TO_ONE)?,
            llama_samplers: LlamaSamplers::read(fields)?,
            frequency_penalty: fields.number("frequency_penalty", &PENALTY)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", &PENALTY)?.unwrap_or(0.0),
            repeat_penalty: repeat.or(repetition).unwrap_or(defaults.repeat_penalty),
            repeat_last: match fields.integer("repeat_last_n", -1..=i64::from(LOOK_BACK_LIMIT))? {
                None => defaults.repeat_last,
                Some(count) => u32::try_from(count).unwrap_or(LOOK_BACK_LIMIT),
            },
            logit_bias: LogitBias::read(fields)?,
            seed: seed(fields)?,
            stop: fields.stop_strings("stop")?,
            ignore_eos: fields.flag("ignore_eos")?,
            n: fields.integer("n", 1..=CHOICE_LIMIT)?.unwrap_or(1),
            adapter: adapter::read(fields)?,
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
        if self.ignore_eos {
            options = options.ignore_eos();
        }
        let biases = self.logit_bias.tokens(model)?;
        if !biases.is_empty() {
            options = options.logit_bias(&biases);
        }
        options = self.add_penalties(options);
        options = self.add_samplers(options);
        if let Some(constraint) = constraint {
            options = options.constrain(constraint);
        }
        if let Some(top) = self.logprobs {
            options = options.logprobs(top);
        }
        if let Some(id) = self.adapter {
            options = options.adapter(adapter::name(model, id)?);
        }
        Ok(options)
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

    /// Temperature comes first, as in OpenAI's API and vLLM: the filters apply to the tempered
    /// distribution. With samplers of llama.cpp, the order is llama.cpp's.
    fn add_samplers(&self, options: GenerateOptions) -> GenerateOptions {
        if let Some(samplers) = &self.llama_samplers {
            return samplers.add(options, self);
        }
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

/// Checks that a request has at most [`CHOICE_LIMIT`] choices over all prompts. `field` has the number of each prompt.
pub fn check_choice_count(prompts: usize, n: u32, field: &str) -> Result<(), Error> {
    let count = u32::try_from(prompts).unwrap_or(u32::MAX).saturating_mul(n);
    if count <= CHOICE_LIMIT {
        return Ok(());
    }
    let text = format!(
        "{prompts} prompts with {n} choices each are {count} choices; expected at most {CHOICE_LIMIT}"
    );
    let field = if n == 1 { "prompt" } else { field };
    Err(Error::bad_request("out-of-range", text).with_field(field))
}

/// Reads `top_k`; -1 stands for no limit, as in llama.cpp and vLLM.
pub fn top_k(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let count = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
    Ok(count.and_then(|count| u32::try_from(count).ok()))
}

/// Reads `logprobs` and `top_logprobs`: `None` without log probabilities; otherwise of how many most likely tokens.
pub fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Error> {
    let enabled = fields.flag("logprobs")?;
    let top = fields.integer("top_logprobs", 0..=LOGPROBS_LIMIT)?;
    match (enabled, top) {
        (false, Some(1..)) => {
            without_effect("top_logprobs", "it requires `logprobs: true`")?;
            Ok(None)
        }
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
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

    pub(super) fn read(value: Value) -> Result<Settings, Error> {
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
{"top_k": -2} => top_k: `top_k` is -2; expected an integer from -1
{"repeat_last_n": -2} => repeat_last_n: from -1 to 65536
{"frequency_penalty": 2.5} => frequency_penalty: from -2 to 2
{"presence_penalty": "x"} => presence_penalty: a string
{"repeat_penalty": 0} => repeat_penalty: greater than 0
{"repeat_penalty": 1.1, "repetition_penalty": 1.1} => repetition_penalty: another name
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
        assert!(check_choice_count(64, 2, "n").is_ok());
        let field = |prompts, n| {
            let error = check_choice_count(prompts, n, "best_of").unwrap_err();
            error.field().map(str::to_owned)
        };
        assert_eq!(field(65, 2).as_deref(), Some("best_of"));
        assert_eq!(field(129, 1).as_deref(), Some("prompt"));
    }

    pub(super) fn host_settings(body: Value) -> Vec<String> {
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
        let found = host_settings(json!({"temperature": 0, "top_p": 0.5, "seed": -1}));
        assert_eq!(found, ["max-tokens 99", "seed 1", "temperature 0"]);
        let expected = ["max-tokens 99", "temperature 1"];
        assert_eq!(host_settings(json!({"top_k": -1})), expected);
        let all = read(json!({"repeat_last_n": -1})).unwrap();
        assert_eq!(all.repeat_last, LOOK_BACK_LIMIT);
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
}
