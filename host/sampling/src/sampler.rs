//! The samplers of a chain, and the ranges of their parameters.

use crate::{Dry, Error, Token};
use std::collections::HashSet;

/// Tokens that penalties and DRY may look back over, for every token drawn.
pub const MAX_LOOK_BACK: u32 = 1 << 16;
/// Tokens that a logit bias may name.
pub const MAX_BIASES: usize = 1024;
/// Samplers in a chain.
pub const MAX_SAMPLERS: usize = 32;
/// Penalties in a chain, of both kinds. Each reads up to [`MAX_LOOK_BACK`] tokens for every token.
pub const MAX_PENALTIES: usize = 4;

/// One sampler of a chain. Each does what llama.cpp's sampler of that name does with `min_keep` 1:
/// settings carry over, and values that turn a sampler off there turn it off here.
#[derive(Clone, Debug, PartialEq)]
pub enum Sampler {
    /// Divides the logits; at 0 keeps only the most likely token.
    Temperature(f32),
    /// Divides the logits by a temperature between `temperature - range` (but 0 or more) and
    /// `temperature + range`, which rises with the entropy: the entropy as a fraction of the highest
    /// possible one, to the power of `exponent`, is the fraction of the way between the two. From
    /// kalomaze's proposal (llama.cpp pull request 4972).
    DynamicTemperature {
        /// The middle of the range.
        temperature: f32,
        /// The distance of both ends from the middle; at 0 this is [`Sampler::Temperature`].
        range: f32,
        /// The power of the entropy's fraction.
        exponent: f32,
    },
    /// Keeps the `k` most likely tokens; 0 keeps all (Fan et al., 2018).
    TopK(u32),
    /// Keeps the smallest set of most likely tokens with at least this probability together (nucleus
    /// sampling, Holtzman et al., 2020); 1 keeps all.
    TopP(f32),
    /// Keeps tokens at least this many times as likely as the most likely one (Nguyen et al., 2024);
    /// 0 keeps all.
    MinP(f32),
    /// Keeps the smallest set of tokens with more than this probability together, starting with those
    /// whose surprise (-ln p) is nearest to the entropy (locally typical sampling, Meister et al.,
    /// 2022); 1 keeps all.
    TypicalP(f32),
    /// Keeps tokens whose logit is at most this many standard deviations of all logits below the
    /// highest (Tang et al., 2024); 0 or less keeps all. Removed tokens still count as candidates for
    /// a dynamic temperature that follows, as in llama.cpp.
    TopNSigma(f32),
    /// With some probability, removes all tokens at least as probable as the threshold, except the
    /// least likely of them (exclude top choices, p-e-w, oobabooga/text-generation-webui pull request
    /// 6335).
    Xtc {
        /// How often it removes tokens; 0 is never.
        probability: f32,
        /// The probability from which a token is a top choice; over 0.5 turns it off.
        threshold: f32,
    },
    /// Lowers tokens that continue a repetition.
    Dry(Dry),
    /// Lowers tokens that occur among the last ones.
    Penalties(Penalties),
    /// Lowers tokens that occur among the last ones of the output; the prompt does not count.
    OutputPenalties(Penalties),
    /// Keeps tokens whose surprise (-log2 p) is at most a limit; must be the last sampler. The limit
    /// starts at 2 tau and falls by eta times the amount by which the drawn token's surprise exceeds
    /// tau (mirostat 2, Basu et al., 2021).
    Mirostat {
        /// The target surprise, in bits.
        tau: f32,
        /// The learning rate.
        eta: f32,
    },
    /// Adds numbers to the logits of tokens, each named once; minus infinity bans a token.
    LogitBias(Vec<(Token, f32)>),
}

/// Settings of penalties. The logit of a token that occurs among the last ones is divided by `repeat`
/// if it is over 0, else multiplied by it (Keskar et al., 2019, corrected for negative logits); then
/// it loses `frequency` for each occurrence, and `presence` once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens to look back over, at most [`MAX_LOOK_BACK`]; 0 turns penalties off.
    pub last_n: u32,
    /// The divisor, over 0; 1 changes nothing.
    pub repeat: f32,
    /// The penalty per occurrence; below 0 it is a reward.
    pub frequency: f32,
    /// The penalty for occurring at all; below 0 it is a reward.
    pub presence: f32,
}

/// Checks a chain for a vocabulary of this size: its length, each sampler, the numbers of penalties and of DRY,
/// that mirostat comes last, and that biased tokens exist.
pub fn check_samplers(samplers: &[Sampler], vocabulary: usize) -> Result<(), Error> {
    if samplers.len() > MAX_SAMPLERS {
        return Err(Error(format!(
            "the chain has {} samplers; it may have at most {MAX_SAMPLERS}",
            samplers.len()
        )));
    }
    let penalties =
        |sampler: &&Sampler| matches!(sampler, Sampler::Penalties(_) | Sampler::OutputPenalties(_));
    let penalties = samplers.iter().filter(penalties).count();
    if penalties > MAX_PENALTIES {
        return Err(Error(format!(
            "the chain has {penalties} penalties; it may have at most {MAX_PENALTIES}"
        )));
    }
    let dry = |sampler: &&Sampler| matches!(sampler, Sampler::Dry(_));
    if samplers.iter().filter(dry).count() > 1 {
        // Each reads the whole history for every token.
        return Err(Error(
            "the chain has several DRY samplers; it may have at most one".into(),
        ));
    }
    for (index, sampler) in samplers.iter().enumerate() {
        sampler.check()?;
        match sampler {
            Sampler::Mirostat { .. } if index + 1 < samplers.len() => {
                return Err(Error(
                    "mirostat is not the last sampler; it must be, since it determines the draw"
                        .into(),
                ));
            }
            Sampler::LogitBias(biases) => {
                let outside = biases.iter().find(|bias| bias.0 as usize >= vocabulary);
                if let Some((token, _)) = outside {
                    return Err(Error(format!(
                        "a logit bias names token {token}; the vocabulary has {vocabulary} tokens"
                    )));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl Sampler {
    /// Checks that the parameters are in range.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Temperature(value) => not_negative("the temperature", *value),
            Self::DynamicTemperature {
                temperature,
                range,
                exponent,
            } => {
                not_negative("the temperature", *temperature)?;
                not_negative("the temperature's range", *range)?;
                not_negative("the temperature's exponent", *exponent)
            }
            Self::TopK(_) => Ok(()),
            Self::TopP(mass) => unit("top-p", *mass),
            Self::MinP(ratio) => unit("min-p", *ratio),
            Self::TypicalP(mass) => unit("typical-p", *mass),
            Self::TopNSigma(count) => finite("top-n-sigma", *count),
            Self::Xtc {
                probability,
                threshold,
            } => {
                unit("XTC's probability", *probability)?;
                unit("XTC's threshold", *threshold)
            }
            Self::Dry(dry) => {
                not_negative("DRY's multiplier", dry.multiplier)?;
                expect(
                    dry.base.is_finite() && dry.base >= 1.0,
                    "DRY's base",
                    dry.base,
                    "1 or more",
                )?;
                look_back("DRY's last-n", dry.last_n)?;
                look_back("DRY's allowed length", dry.allowed_length)
            }
            Self::Penalties(penalties) | Self::OutputPenalties(penalties) => {
                look_back("the penalties' last-n", penalties.last_n)?;
                expect(
                    penalties.repeat.is_finite() && penalties.repeat > 0.0,
                    "the repetition penalty",
                    penalties.repeat,
                    "over 0",
                )?;
                finite("the frequency penalty", penalties.frequency)?;
                finite("the presence penalty", penalties.presence)
            }
            Self::Mirostat { tau, eta } => {
                not_negative("mirostat's tau", *tau)?;
                not_negative("mirostat's eta", *eta)
            }
            Self::LogitBias(biases) => check_biases(biases),
        }
    }
}

fn expect(holds: bool, name: &str, value: f32, expected: &str) -> Result<(), Error> {
    holds
        .then_some(())
        .ok_or_else(|| Error(format!("{name} is {value}; it must be {expected}")))
}

fn unit(name: &str, value: f32) -> Result<(), Error> {
    let holds = (0.0..=1.0).contains(&value);
    expect(holds, name, value, "between 0 and 1")
}

fn not_negative(name: &str, value: f32) -> Result<(), Error> {
    let holds = value.is_finite() && value >= 0.0;
    expect(holds, name, value, "0 or more")
}

fn finite(name: &str, value: f32) -> Result<(), Error> {
    expect(value.is_finite(), name, value, "a finite number")
}

fn look_back(name: &str, tokens: u32) -> Result<(), Error> {
    (tokens <= MAX_LOOK_BACK).then_some(()).ok_or_else(|| {
        Error(format!(
            "{name} is {tokens} tokens; it must be {MAX_LOOK_BACK} or less"
        ))
    })
}

fn check_biases(biases: &[(Token, f32)]) -> Result<(), Error> {
    if biases.len() > MAX_BIASES {
        return Err(Error(format!(
            "the request has {} logit biases; it may have at most {MAX_BIASES}",
            biases.len()
        )));
    }
    let mut seen = HashSet::new();
    for &(token, bias) in biases {
        expect(
            bias.is_finite() || bias == f32::NEG_INFINITY,
            &format!("the bias of token {token}"),
            bias,
            "finite, or minus infinity to ban it",
        )?;
        if !seen.insert(token) {
            return Err(Error(format!(
                "token {token} has two logit biases; it must have one"
            )));
        }
    }
    Ok(())
}
