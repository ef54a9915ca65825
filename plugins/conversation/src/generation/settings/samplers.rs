//! The samplers that llama.cpp's server has and OpenAI's API has not, by the server's names and with
//! its defaults.
//!
//! A request with any of these fields gets llama.cpp's default chain: penalties, DRY, top-n-sigma,
//! top-k, typical, top-p, min-p, XTC, temperature. The host's `options` document each sampler;
//! `host/sampling` cites the papers and proposals.

use super::{LOOK_BACK, LOOK_BACK_LIMIT, Settings};
use corral_sdk::fields::{AT_LEAST_ONE, FINITE, Fields, NON_NEGATIVE, ZERO_TO_ONE};
use corral_sdk::{Dry, Error, GenerateOptions};
use serde_json::{Map, Value, json};

/// The host's limit for DRY's breakers.
const BREAKER_LIMIT: usize = 16;
/// The host's limit for a breaker, in bytes.
const BREAKER_BYTES: usize = 40;

/// The fields that [`LlamaSamplers::read`] reads.
pub const FIELDS: [&str; 14] = [
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
];

/// Settings of samplers. Each default turns its sampler off.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaSamplers {
    typical: f32,
    top_n_sigma: f32,
    xtc: Xtc,
    dry: Dry,
    dynamic_temperature: DynamicTemperature,
    mirostat: Option<Mirostat>,
}

#[derive(Debug, Clone, PartialEq)]
struct Xtc {
    probability: f32,
    threshold: f32,
}

#[derive(Debug, Clone, PartialEq)]
struct DynamicTemperature {
    range: f32,
    exponent: f32,
}

#[derive(Debug, Clone, PartialEq)]
struct Mirostat {
    tau: f32,
    eta: f32,
}

/// The defaults of version 2.
const MIROSTAT: Mirostat = Mirostat { tau: 5.0, eta: 0.1 };

impl LlamaSamplers {
    /// Reads the fields. `None` if the request has none of them.
    pub fn read(fields: &mut Fields) -> Result<Option<Self>, Error> {
        if FIELDS.iter().all(|name| fields.peek(name).is_none()) {
            return Ok(None);
        }
        Self::read_all(fields).map(Some)
    }

    /// All samplers off.
    pub fn off() -> Result<Self, Error> {
        Self::read_all(&mut Fields::from_map(Map::new()))
    }

    fn read_all(fields: &mut Fields) -> Result<Self, Error> {
        Ok(LlamaSamplers {
            typical: fields.number("typical_p", &ZERO_TO_ONE)?.unwrap_or(1.0),
            top_n_sigma: fields.number("top_n_sigma", &FINITE)?.unwrap_or(-1.0),
            xtc: Xtc {
                probability: fields
                    .number("xtc_probability", &ZERO_TO_ONE)?
                    .unwrap_or(0.0),
                threshold: fields.number("xtc_threshold", &ZERO_TO_ONE)?.unwrap_or(0.1),
            },
            dry: dry(fields)?,
            dynamic_temperature: DynamicTemperature {
                range: fields
                    .number("dynatemp_range", &NON_NEGATIVE)?
                    .unwrap_or(0.0),
                exponent: fields
                    .number("dynatemp_exponent", &NON_NEGATIVE)?
                    .unwrap_or(1.0),
            },
            mirostat: mirostat(fields)?,
        })
    }

    /// The settings in the names of the fields.
    pub fn values(&self) -> Value {
        let version = if self.mirostat.is_some() { 2 } else { 0 };
        let mirostat = self.mirostat.clone().unwrap_or(MIROSTAT);
        json!({
            "typical_p": shortest(self.typical),
            "top_n_sigma": shortest(self.top_n_sigma),
            "xtc_probability": shortest(self.xtc.probability),
            "xtc_threshold": shortest(self.xtc.threshold),
            "dry_multiplier": shortest(self.dry.multiplier),
            "dry_base": shortest(self.dry.base),
            "dry_allowed_length": self.dry.allowed_length,
            "dry_penalty_last_n": self.dry.last_n,
            "dry_sequence_breakers": self.dry.breakers,
            "dynatemp_range": shortest(self.dynamic_temperature.range),
            "dynatemp_exponent": shortest(self.dynamic_temperature.exponent),
            "mirostat": version,
            "mirostat_tau": shortest(mirostat.tau),
            "mirostat_eta": shortest(mirostat.eta),
        })
    }

    /// Adds the chain after the penalties, with the samplers of `common` in their places.
    pub fn add(&self, mut options: GenerateOptions, common: &Settings) -> GenerateOptions {
        if let Some(mirostat) = &self.mirostat {
            // As in llama.cpp, mirostat replaces the other samplers.
            return options
                .temperature(common.temperature)
                .mirostat(mirostat.tau, mirostat.eta);
        }
        if self.dry.multiplier > 0.0 && self.dry.last_n > 0 {
            options = options.dry(&self.dry);
        }
        // The host turns XTC off above this threshold.
        let xtc = self.xtc.probability > 0.0 && self.xtc.threshold <= 0.5;
        let DynamicTemperature { range, exponent } = self.dynamic_temperature;
        if common.temperature == 0.0 && range <= 0.0 && self.typical >= 1.0 && !xtc {
            // The other filters keep the most likely token.
            return options.temperature(0.0);
        }
        if self.top_n_sigma > 0.0 {
            options = options.top_n_sigma(self.top_n_sigma);
        }
        if let Some(count) = common.top_k {
            options = options.top_k(count);
        }
        if self.typical < 1.0 {
            options = options.typical_p(self.typical);
        }
        if let Some(mass) = common.top_p {
            options = options.top_p(mass);
        }
        if let Some(ratio) = common.min_p {
            options = options.min_p(ratio);
        }
        if xtc {
            options = options.xtc(self.xtc.probability, self.xtc.threshold);
        }
        match range > 0.0 {
            true => options.dynamic_temperature(common.temperature, range, exponent),
            false => options.temperature(common.temperature),
        }
    }
}

/// The shortest number that reads back as the same `f32`.
pub fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn dry(fields: &mut Fields) -> Result<Dry, Error> {
    Ok(Dry {
        multiplier: fields
            .number("dry_multiplier", &NON_NEGATIVE)?
            .unwrap_or(0.0),
        base: fields.number("dry_base", &AT_LEAST_ONE)?.unwrap_or(1.75),
        allowed_length: fields
            .integer("dry_allowed_length", 0..=LOOK_BACK_LIMIT)?
            .unwrap_or(2),
        last_n: look_back(fields)?,
        breakers: breakers(fields)?,
    })
}

/// Reads the tokens that DRY searches; -1, in llama.cpp the whole context, is the most that the host
/// searches.
fn look_back(fields: &mut Fields) -> Result<u32, Error> {
    let last = fields.integer("dry_penalty_last_n", -1..=i64::from(LOOK_BACK_LIMIT))?;
    Ok(last.map_or(LOOK_BACK, |last| {
        u32::try_from(last).unwrap_or(LOOK_BACK_LIMIT)
    }))
}

fn breakers(fields: &mut Fields) -> Result<Vec<String>, Error> {
    let path = fields.path("dry_sequence_breakers");
    let Some(breakers) = fields.text_list("dry_sequence_breakers")? else {
        return Ok(["\n", ":", "\"", "*"].map(str::to_owned).to_vec());
    };
    let error = |field: &str, text| Error::bad_request("out-of-range", text).with_field(field);
    if breakers.len() > BREAKER_LIMIT {
        let text = format!(
            "`{path}` has {} strings; expected at most {BREAKER_LIMIT}",
            breakers.len()
        );
        return Err(error(&path, text));
    }
    let mut lengths = breakers.iter().map(String::len).enumerate();
    match lengths.find(|(_, length)| !(1..=BREAKER_BYTES).contains(length)) {
        None => Ok(breakers),
        Some((index, length)) => {
            let path = format!("{path}[{index}]");
            let text = format!("`{path}` has {length} bytes; expected 1 to {BREAKER_BYTES}");
            Err(error(&path, text))
        }
    }
}

/// Reads mirostat. Version 1 means version 2, which aims at the same surprise without version 1's
/// estimate of the distribution's tail.
fn mirostat(fields: &mut Fields) -> Result<Option<Mirostat>, Error> {
    let version = fields.integer("mirostat", 0..=2_u32)?.unwrap_or(0);
    let mirostat = Mirostat {
        tau: fields
            .number("mirostat_tau", &NON_NEGATIVE)?
            .unwrap_or(MIROSTAT.tau),
        eta: fields
            .number("mirostat_eta", &NON_NEGATIVE)?
            .unwrap_or(MIROSTAT.eta),
    };
    Ok((version > 0).then_some(mirostat))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{host_settings, read};
    use corral_sdk::Dry;
    use corral_sdk::testing::check_field_errors;
    use serde_json::{Value, json};

    fn chain(body: Value) -> Vec<String> {
        host_settings(body).split_off(1)
    }

    fn dry(base: f32, allowed_length: u32, last_n: u32, breakers: &[&str]) -> String {
        let dry = Dry {
            multiplier: 0.5,
            base,
            allowed_length,
            last_n,
            breakers: breakers.iter().map(|&text| text.to_owned()).collect(),
        };
        format!("dry {dry:?}")
    }

    #[test]
    fn chain_has_the_order_of_llama_cpp() {
        let dry = dry(1.5, 3, 100, &["x"]);
        assert_eq!(
            chain(json!({
                "temperature": 0.5, "top_p": 0.25, "top_k": 4, "min_p": 0.125, "typical_p": 0.75,
                "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.25,
                "dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3,
                "dry_penalty_last_n": 100, "dry_sequence_breakers": ["x"],
                "dynatemp_range": 0.25, "dynatemp_exponent": 2, "presence_penalty": 1,
                "logit_bias": {"97": 1},
            })),
            [
                "logit-bias [(97, 1.0)]",
                "output-penalties Penalties { last-n: 65536, repeat: 1.0, frequency: 0.0, presence: 1.0 }",
                &dry,
                "top-n-sigma 1.5",
                "top-k 4",
                "typical-p 0.75",
                "top-p 0.25",
                "min-p 0.125",
                "xtc 0.5 0.25",
                "dynamic-temperature 0.5 0.25 2",
            ]
        );
    }

    #[test]
    fn defaults_are_off_but_move_the_temperature() {
        let off = json!({
            "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "xtc_threshold": 0.1,
            "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
            "dry_penalty_last_n": -1, "dry_sequence_breakers": [], "dynatemp_range": 0,
            "dynatemp_exponent": 1, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
            "top_k": 9,
        });
        assert_eq!(chain(off), ["top-k 9", "temperature 1"]);
        let above_half = json!({"xtc_probability": 0.5, "xtc_threshold": 0.6});
        assert_eq!(chain(above_half), ["temperature 1"]);
        // `null` is absent.
        let absent = json!({"typical_p": null, "top_k": 9});
        assert_eq!(chain(absent), ["temperature 1", "top-k 9"]);
    }

    #[test]
    fn greedy_answer_needs_no_filters() {
        let filters = json!({
            "temperature": 0, "top_k": 4, "top_p": 0.5, "min_p": 0.5, "top_n_sigma": 1, "typical_p": 1,
        });
        assert_eq!(chain(filters), ["temperature 0"]);
        let typical = json!({"temperature": 0, "top_k": 4, "typical_p": 0.5});
        assert_eq!(
            chain(typical),
            ["top-k 4", "typical-p 0.5", "temperature 0"]
        );
    }

    #[test]
    fn dry_has_llama_cpp_defaults() {
        let defaults = chain(json!({"dry_multiplier": 0.5}));
        let dry = dry(1.75, 2, 64, &["\n", ":", "\"", "*"]);
        assert_eq!(defaults, [dry.as_str(), "temperature 1"]);
        let all = chain(json!({"dry_multiplier": 0.5, "dry_penalty_last_n": -1}));
        assert!(all[0].contains("last-n: 65536"), "{all:?}");
        let none = chain(json!({"dry_multiplier": 0.5, "dry_penalty_last_n": 0}));
        assert_eq!(none, ["temperature 1"]);
    }

    #[test]
    fn mirostat_replaces_filters() {
        for version in [1, 2] {
            let body =
                json!({"mirostat": version, "top_k": 9, "typical_p": 0.5, "dry_multiplier": 1});
            assert_eq!(chain(body), ["temperature 1", "mirostat 5 0.1"]);
        }
        let body =
            json!({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.25, "temperature": 0});
        assert_eq!(chain(body), ["temperature 0", "mirostat 3 0.25"]);
    }

    /// Fields, and the field and text of their error.
    const ERRORS: &str = r#"
{"typical_p": 1.5} => typical_p: from 0 to 1
{"typical_p": "x"} => typical_p: a string
{"top_n_sigma": true} => top_n_sigma: expected a number
{"xtc_probability": -0.1} => xtc_probability: from 0 to 1
{"xtc_threshold": 2} => xtc_threshold: from 0 to 1
{"dry_multiplier": -1} => dry_multiplier: at least 0
{"dry_base": 0.5} => dry_base: at least 1
{"dry_allowed_length": -1} => dry_allowed_length: from 0 to 65536
{"dry_penalty_last_n": -2} => dry_penalty_last_n: from -1 to 65536
{"dry_penalty_last_n": 65537} => dry_penalty_last_n: from -1 to 65536
{"dry_penalty_last_n": 1.5} => dry_penalty_last_n: an integer
{"dry_sequence_breakers": "x"} => dry_sequence_breakers: a string; expected a list
{"dry_sequence_breakers": ["x", 1]} => dry_sequence_breakers[1]: a number
{"dry_sequence_breakers": ["x", ""]} => dry_sequence_breakers[1]: has 0 bytes
{"dynatemp_range": -1} => dynatemp_range: at least 0
{"dynatemp_exponent": -1} => dynatemp_exponent: at least 0
{"mirostat": 3} => mirostat: from 0 to 2
{"mirostat_tau": -1} => mirostat_tau: at least 0
{"mirostat_eta": "x"} => mirostat_eta: a string
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, read);
        let many = json!({"dry_sequence_breakers": vec!["x"; 17]});
        let long = json!({"dry_sequence_breakers": ["x".repeat(41)]});
        for (body, text) in [(many, "17 strings"), (long, "41 bytes")] {
            let error = read(body).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
