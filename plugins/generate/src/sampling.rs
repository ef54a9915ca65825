//! The sampler chain, in the order of application.
//!
//! A request has either the fields `temperature`, `top_k`, `top_p` and `min_p`, whose order is
//! fixed, or the list `samplers`. Ranges are those of the WIT; the host checks token ids.

use serde_json::Value;

use corral_sdk::fields::{
    AT_LEAST_ONE, FINITE, Fields, NON_NEGATIVE, POSITIVE, ZERO_TO_ONE, integer, number, wrong_type,
};
use corral_sdk::{Dry, Error, Penalties};

/// The host's limit for samplers.
const CHAIN_LIMIT: usize = 32;
/// The host's limit for the tokens that DRY and penalties consider.
const LOOK_BACK_LIMIT: u32 = 65_536;
/// Bans a token in `logit_bias`: JSON has no infinity.
const BANNED: &str = "-inf";

const SAMPLER_NAMES: [&str; 13] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "dynamic_temperature",
    "xtc",
    "dry",
    "penalties",
    "output_penalties",
    "logit_bias",
    "mirostat",
];

/// A sampler, as in `options` of the WIT.
#[derive(Debug, Clone, PartialEq)]
pub enum Sampler {
    Temperature(f32),
    TopK(u32),
    TopP(f32),
    MinP(f32),
    TypicalP(f32),
    TopNSigma(f32),
    DynamicTemperature {
        temperature: f32,
        range: f32,
        exponent: f32,
    },
    Xtc {
        probability: f32,
        threshold: f32,
    },
    Dry(Dry),
    Penalties(Penalties),
    OutputPenalties(Penalties),
    /// Tokens and the biases on their logits; minus infinity bans a token.
    LogitBias(Vec<(u32, f32)>),
    Mirostat {
        tau: f32,
        eta: f32,
    },
}

/// The samplers that have fields of their own in a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommonSamplers {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
}

impl CommonSamplers {
    /// The chain: filters first, then the temperature.
    pub fn chain(&self) -> Vec<Sampler> {
        let samplers = [
            self.top_k.map(Sampler::TopK),
            self.top_p.map(Sampler::TopP),
            self.min_p.map(Sampler::MinP),
            self.temperature.map(Sampler::Temperature),
        ];
        samplers.into_iter().flatten().collect()
    }
}

/// Reads the chain of a request; empty is greedy.
pub fn chain(fields: &mut Fields) -> Result<Vec<Sampler>, Error> {
    let common = CommonSamplers {
        temperature: fields.number("temperature", &NON_NEGATIVE)?,
        top_k: fields.integer("top_k", 0..=u32::MAX)?,
        top_p: fields.number("top_p", &ZERO_TO_ONE)?,
        min_p: fields.number("min_p", &ZERO_TO_ONE)?,
    };
    let Some(entries) = fields.list("samplers")? else {
        return Ok(common.chain());
    };
    if common != CommonSamplers::default() {
        return Err(Error::bad_request(
            "ambiguous-samplers",
            "`samplers` replaces `temperature`, `top_k`, `top_p` and `min_p`; expected either \
             `samplers` or those fields",
        ));
    }
    if entries.len() > CHAIN_LIMIT {
        return Err(Error::bad_request(
            "out-of-range",
            format!(
                "`samplers` has {} entries; expected at most {CHAIN_LIMIT}",
                entries.len()
            ),
        ));
    }
    let last = entries.len().saturating_sub(1);
    let entries = entries.into_iter().enumerate();
    entries
        .map(|(index, entry)| {
            let path = format!("samplers[{index}]");
            let sampler = sampler(&path, entry)?;
            if matches!(sampler, Sampler::Mirostat { .. }) && index < last {
                return Err(Error::bad_request(
                    "ambiguous-samplers",
                    format!("`{path}` is mirostat; expected it to be the last sampler"),
                ));
            }
            Ok(sampler)
        })
        .collect()
}

fn sampler(path: &str, entry: Value) -> Result<Sampler, Error> {
    let entry = Fields::at(path.to_owned(), entry)?;
    let (name, value) = entry.single(&SAMPLER_NAMES)?;
    let path = format!("{path}.{name}");
    Ok(match name.as_str() {
        "temperature" => Sampler::Temperature(number(&path, &value, &NON_NEGATIVE)?),
        "top_k" => Sampler::TopK(integer(&path, &value, 0..=u32::MAX)?),
        "top_p" => Sampler::TopP(number(&path, &value, &ZERO_TO_ONE)?),
        "min_p" => Sampler::MinP(number(&path, &value, &ZERO_TO_ONE)?),
        "typical_p" => Sampler::TypicalP(number(&path, &value, &ZERO_TO_ONE)?),
        "top_n_sigma" => Sampler::TopNSigma(number(&path, &value, &FINITE)?),
        "logit_bias" => Sampler::LogitBias(biases(&path, &value)?),
        _ => return sampler_with_fields(&name, Fields::at(path, value)?),
    })
}

/// Reads a sampler whose value is an object. The defaults are llama.cpp's; DRY's `multiplier` is
/// required.
fn sampler_with_fields(name: &str, mut fields: Fields) -> Result<Sampler, Error> {
    Ok(match name {
        "dynamic_temperature" => {
            fields.reject_unknown(&["temperature", "range", "exponent"])?;
            Sampler::DynamicTemperature {
                temperature: fields.required_number("temperature", &NON_NEGATIVE)?,
                range: fields.required_number("range", &NON_NEGATIVE)?,
                exponent: fields.number("exponent", &NON_NEGATIVE)?.unwrap_or(1.0),
            }
        }
        "xtc" => {
            fields.reject_unknown(&["probability", "threshold"])?;
            Sampler::Xtc {
                probability: fields.required_number("probability", &ZERO_TO_ONE)?,
                threshold: fields.required_number("threshold", &ZERO_TO_ONE)?,
            }
        }
        "dry" => Sampler::Dry(dry(&mut fields)?),
        "penalties" => Sampler::Penalties(penalties(&mut fields)?),
        "output_penalties" => Sampler::OutputPenalties(penalties(&mut fields)?),
        // Mirostat, the last of `SAMPLER_NAMES`.
        _ => {
            fields.reject_unknown(&["tau", "eta"])?;
            Sampler::Mirostat {
                tau: fields.required_number("tau", &NON_NEGATIVE)?,
                eta: fields.required_number("eta", &NON_NEGATIVE)?,
            }
        }
    })
}

fn penalties(fields: &mut Fields) -> Result<Penalties, Error> {
    fields.reject_unknown(&["last_n", "repeat", "frequency", "presence"])?;
    Ok(Penalties {
        last_n: fields.integer("last_n", 0..=LOOK_BACK_LIMIT)?.unwrap_or(64),
        repeat: fields.number("repeat", &POSITIVE)?.unwrap_or(1.0),
        frequency: fields.number("frequency", &FINITE)?.unwrap_or(0.0),
        presence: fields.number("presence", &FINITE)?.unwrap_or(0.0),
    })
}

fn dry(fields: &mut Fields) -> Result<Dry, Error> {
    fields.reject_unknown(&["multiplier", "base", "allowed_length", "last_n", "breakers"])?;
    let breakers = fields.text_list("breakers")?;
    let defaults = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
    Ok(Dry {
        multiplier: fields.required_number("multiplier", &NON_NEGATIVE)?,
        base: fields.number("base", &AT_LEAST_ONE)?.unwrap_or(1.75),
        allowed_length: fields
            .integer("allowed_length", 0..=LOOK_BACK_LIMIT)?
            .unwrap_or(2),
        last_n: fields
            .integer("last_n", 0..=LOOK_BACK_LIMIT)?
            .unwrap_or(LOOK_BACK_LIMIT),
        breakers: breakers.unwrap_or_else(defaults),
    })
}

fn biases(path: &str, value: &Value) -> Result<Vec<(u32, f32)>, Error> {
    const PAIR: &str = "a pair of a token id and a bias";
    let Value::Array(pairs) = value else {
        return Err(wrong_type(
            path,
            "a list of pairs of a token id and a bias",
            value,
        ));
    };
    let pairs = pairs.iter().enumerate();
    pairs
        .map(|(index, pair)| {
            let path = format!("{path}[{index}]");
            let Value::Array(entries) = pair else {
                return Err(wrong_type(&path, PAIR, pair));
            };
            let [token, bias] = entries.as_slice() else {
                return Err(Error::bad_request(
                    "wrong-type",
                    format!("`{path}` has {} entries; expected {PAIR}", entries.len()),
                ));
            };
            let token = integer(&format!("{path}[0]"), token, 0..=u32::MAX)?;
            let at = format!("{path}[1]");
            let bias = match bias {
                Value::String(text) if text == BANNED => f32::NEG_INFINITY,
                Value::Number(_) => number(&at, bias, &FINITE)?,
                other => {
                    let expected = "a number, or \"-inf\" to ban the token";
                    return Err(wrong_type(&at, expected, other));
                }
            };
            Ok((token, bias))
        })
        .collect()
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
