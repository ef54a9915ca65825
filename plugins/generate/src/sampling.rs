//! How tokens are drawn: a chain of samplers, in the order in which they are applied.
//!
//! A request gives it in one of two ways: by the fields `temperature`, `top_k`, `top_p` and `min_p`,
//! whose order is fixed, or link by link in `samplers`. Ranges are those that the host states; what
//! takes a vocabulary to check (a token that does not exist) is left to it.

use serde_json::Value;

use corral_sdk::Error;
use corral_sdk::fields::{
    FINITE, FROM_ONE, Fields, NOT_NEGATIVE, POSITIVE, SHARE, integer, number,
};

/// Links that `samplers` may have, which is what the host takes.
const LINK_LIMIT: usize = 32;
/// Tokens that DRY and penalties may look back over, which is what the host takes.
const LOOK_BACK_LIMIT: u32 = 65_536;
/// What bans a token in a `logit_bias`: JSON has no infinity.
const BANNED: &str = "-inf";

const LINKS: [&str; 13] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical",
    "top_n_sigma",
    "dynamic_temperature",
    "xtc",
    "dry",
    "penalties",
    "answer_penalties",
    "logit_bias",
    "mirostat",
];

/// One link. They mean what the setters of `options` in the WIT say.
#[derive(Debug, Clone, PartialEq)]
pub enum Sampler {
    Temperature(f32),
    TopK(u32),
    TopP(f32),
    MinP(f32),
    Typical(f32),
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
    AnswerPenalties(Penalties),
    /// Tokens and what is added to their logits; minus infinity bans one.
    LogitBias(Vec<(u32, f32)>),
    Mirostat {
        tau: f32,
        eta: f32,
    },
}

/// Settings of DRY. The defaults are those of llama.cpp, but for `multiplier`, which has none.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    pub allowed_length: u32,
    pub range: u32,
    pub breakers: Vec<String>,
}

/// Settings of penalties. The defaults are those of llama.cpp, with which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    pub last: u32,
    pub repeat: f32,
    pub frequency: f32,
    pub presence: f32,
}

/// The samplers that have a field of their own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Common {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
}

impl Common {
    /// The chain: what is unlikely is left out first, then the temperature evens out the rest.
    pub fn chain(&self) -> Vec<Sampler> {
        let links = [
            self.top_k.map(Sampler::TopK),
            self.top_p.map(Sampler::TopP),
            self.min_p.map(Sampler::MinP),
            self.temperature.map(Sampler::Temperature),
        ];
        links.into_iter().flatten().collect()
    }
}

/// Reads the chain of a request; empty is greedy.
pub fn chain(fields: &mut Fields) -> Result<Vec<Sampler>, Error> {
    let common = Common {
        temperature: fields.number("temperature", &NOT_NEGATIVE)?,
        top_k: fields.integer("top_k", 0..=u32::MAX)?,
        top_p: fields.number("top_p", &SHARE)?,
        min_p: fields.number("min_p", &SHARE)?,
    };
    let Some(entries) = fields.list("samplers")? else {
        return Ok(common.chain());
    };
    if common != Common::default() {
        return Err(Error::bad_request(
            "ambiguous-samplers",
            "`samplers` gives the whole chain, so it does not go with `temperature`, `top_k`, \
             `top_p` and `min_p`; put them into it, in the order in which they shall be applied",
        ));
    }
    if entries.len() > LINK_LIMIT {
        return Err(Error::bad_request(
            "out-of-range",
            format!(
                "`samplers` has {} entries; expected at most {LINK_LIMIT}",
                entries.len()
            ),
        ));
    }
    let last = entries.len().saturating_sub(1);
    let entries = entries.into_iter().enumerate();
    entries
        .map(|(index, entry)| {
            let path = format!("samplers[{index}]");
            let link = link(&path, entry)?;
            if matches!(link, Sampler::Mirostat { .. }) && index < last {
                return Err(Error::bad_request(
                    "ambiguous-samplers",
                    format!("`{path}` is mirostat, which draws the token; expected it last"),
                ));
            }
            Ok(link)
        })
        .collect()
}

fn link(path: &str, entry: Value) -> Result<Sampler, Error> {
    let entry = Fields::of(path.to_owned(), entry)?;
    let (name, value) = entry.only(&LINKS)?;
    let path = format!("{path}.{name}");
    Ok(match name.as_str() {
        "temperature" => Sampler::Temperature(number(&path, &value, &NOT_NEGATIVE)?),
        "top_k" => Sampler::TopK(integer(&path, &value, 0..=u32::MAX)?),
        "top_p" => Sampler::TopP(number(&path, &value, &SHARE)?),
        "min_p" => Sampler::MinP(number(&path, &value, &SHARE)?),
        "typical" => Sampler::Typical(number(&path, &value, &SHARE)?),
        "top_n_sigma" => Sampler::TopNSigma(number(&path, &value, &FINITE)?),
        "logit_bias" => Sampler::LogitBias(biases(&path, &value)?),
        _ => return link_of_members(&name, Fields::of(path, value)?),
    })
}

/// A link whose value is an object.
fn link_of_members(name: &str, mut members: Fields) -> Result<Sampler, Error> {
    Ok(match name {
        "dynamic_temperature" => {
            members.refuse_unknown(&["temperature", "range", "exponent"])?;
            Sampler::DynamicTemperature {
                temperature: members.needed_number("temperature", &NOT_NEGATIVE)?,
                range: members.needed_number("range", &NOT_NEGATIVE)?,
                exponent: members.number("exponent", &NOT_NEGATIVE)?.unwrap_or(1.0),
            }
        }
        "xtc" => {
            members.refuse_unknown(&["probability", "threshold"])?;
            Sampler::Xtc {
                probability: members.needed_number("probability", &SHARE)?,
                threshold: members.needed_number("threshold", &SHARE)?,
            }
        }
        "dry" => Sampler::Dry(dry(&mut members)?),
        "penalties" => Sampler::Penalties(penalties(&mut members)?),
        "answer_penalties" => Sampler::AnswerPenalties(penalties(&mut members)?),
        // Mirostat: `link` knows no other name.
        _ => {
            members.refuse_unknown(&["tau", "eta"])?;
            Sampler::Mirostat {
                tau: members.needed_number("tau", &NOT_NEGATIVE)?,
                eta: members.needed_number("eta", &NOT_NEGATIVE)?,
            }
        }
    })
}

fn penalties(members: &mut Fields) -> Result<Penalties, Error> {
    members.refuse_unknown(&["last", "repeat", "frequency", "presence"])?;
    Ok(Penalties {
        last: members.integer("last", 0..=LOOK_BACK_LIMIT)?.unwrap_or(64),
        repeat: members.number("repeat", &POSITIVE)?.unwrap_or(1.0),
        frequency: members.number("frequency", &FINITE)?.unwrap_or(0.0),
        presence: members.number("presence", &FINITE)?.unwrap_or(0.0),
    })
}

fn dry(members: &mut Fields) -> Result<Dry, Error> {
    members.refuse_unknown(&["multiplier", "base", "allowed_length", "range", "breakers"])?;
    let path = members.path("breakers");
    let breakers = match members.list("breakers")? {
        None => ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
        Some(texts) => texts
            .into_iter()
            .enumerate()
            .map(|(index, text)| match text {
                Value::String(text) => Ok(text),
                other => Err(Error::wrong_type(
                    &format!("`{path}[{index}]`"),
                    "a string",
                    &other,
                )),
            })
            .collect::<Result<_, _>>()?,
    };
    Ok(Dry {
        multiplier: members.needed_number("multiplier", &NOT_NEGATIVE)?,
        base: members.number("base", &FROM_ONE)?.unwrap_or(1.75),
        allowed_length: members
            .integer("allowed_length", 0..=LOOK_BACK_LIMIT)?
            .unwrap_or(2),
        range: members
            .integer("range", 0..=LOOK_BACK_LIMIT)?
            .unwrap_or(LOOK_BACK_LIMIT),
        breakers,
    })
}

fn biases(path: &str, value: &Value) -> Result<Vec<(u32, f32)>, Error> {
    const PAIR: &str = "a pair of a token's number and a bias";
    let Value::Array(pairs) = value else {
        return Err(Error::wrong_type(
            &format!("`{path}`"),
            "a list of pairs of a token's number and a bias",
            value,
        ));
    };
    let pairs = pairs.iter().enumerate();
    pairs
        .map(|(index, pair)| {
            let path = format!("{path}[{index}]");
            let Value::Array(members) = pair else {
                return Err(Error::wrong_type(&format!("`{path}`"), PAIR, pair));
            };
            let [token, bias] = members.as_slice() else {
                return Err(Error::bad_request(
                    "wrong-type",
                    format!("`{path}` has {} members; expected {PAIR}", members.len()),
                ));
            };
            let token = integer(&format!("{path}[0]"), token, 0..=u32::MAX)?;
            let at = format!("{path}[1]");
            let bias = match bias {
                Value::String(text) if text == BANNED => f32::NEG_INFINITY,
                Value::Number(_) => number(&at, bias, &FINITE)?,
                other => {
                    return Err(Error::wrong_type(
                        &format!("`{at}`"),
                        "a number, or \"-inf\" to ban the token",
                        other,
                    ));
                }
            };
            Ok((token, bias))
        })
        .collect()
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
