//! The links of a chain and what their parameters may be.

use super::dry::Dry;
use crate::{Error, Token};
use std::collections::HashSet;

/// Tokens that penalties and DRY may look back over: it is gone through for each token drawn.
pub const MAX_RANGE: u32 = 1 << 16;
/// Tokens that a logit bias may name.
pub const MAX_BIASES: usize = 1024;
/// Links that a chain may have.
pub const MAX_LINKS: usize = 32;

/// One link of a chain. Each does what llama.cpp's sampler of that name does with `min_keep` 1,
/// so that settings carry over; values that turn one off there do so here.
#[derive(Clone, Debug, PartialEq)]
pub enum Sampler {
    /// Divides the logits; at 0 only the most likely token is left.
    Temperature(f32),
    /// Divides the logits by a temperature between `temperature - range` (but 0 or more) and
    /// `temperature + range`, the higher the more even the probabilities are: the entropy in
    /// shares of the highest possible one, to the power of `exponent`, says where between.
    /// From kalomaze's proposal (llama.cpp pull request 4972).
    DynamicTemperature {
        /// The middle.
        temperature: f32,
        /// The distance of both ends from it; at 0 this is [`Sampler::Temperature`].
        range: f32,
        /// Bends the way between them.
        exponent: f32,
    },
    /// Keeps the `k` most likely tokens; 0 keeps all (Fan et al., 2018).
    TopK(u32),
    /// Keeps the smallest set of most likely tokens with at least this probability together
    /// (nucleus sampling, Holtzman et al., 2020); 1 keeps all.
    TopP(f32),
    /// Keeps tokens at least this many times as likely as the most likely one (Nguyen et al.,
    /// 2024); 0 keeps all.
    MinP(f32),
    /// Keeps the smallest set of tokens with more than this probability together, those first
    /// whose surprise (-ln p) is nearest to the entropy (locally typical sampling, Meister et
    /// al., 2022); 1 keeps all.
    Typical(f32),
    /// Keeps tokens whose logit is at most this many standard deviations of all logits under the
    /// highest (Tang et al., 2024); 0 or less keeps all. Those left out still count as candidates
    /// for a dynamic temperature that follows, as in llama.cpp.
    TopNSigma(f32),
    /// Leaves out, with some probability, all tokens at least as probable as the threshold but
    /// the least likely of them (exclude top choices, p-e-w, oobabooga/text-generation-webui pull
    /// request 6335).
    Xtc {
        /// How often it does; 0 is never.
        probability: f32,
        /// From which probability on a token is a top choice; over 0.5 turns it off.
        threshold: f32,
    },
    /// Makes tokens that continue a repetition less likely.
    Dry(Dry),
    /// Makes tokens that stand among the last ones less likely.
    Penalties(Penalties),
    /// The same over the tokens of this generation alone, whatever stood before it.
    AnswerPenalties(Penalties),
    /// Keeps tokens whose surprise (-log2 p) is at most a limit, then draws, so it must come
    /// last. The limit starts at 2 tau and moves by eta times what the drawn token's surprise was
    /// too low (mirostat 2, Basu et al., 2021).
    Mirostat {
        /// The surprise to keep to, in bits.
        tau: f32,
        /// How fast it is approached.
        eta: f32,
    },
    /// Adds numbers to the logits of tokens, each named once; minus infinity bans one.
    LogitBias(Vec<(Token, f32)>),
}

/// Settings of penalties. A token that stands among the last ones has its logit divided by
/// `repeat` if it is over 0, else multiplied with it (Keskar et al., 2019, mended for negative
/// logits); then it loses `frequency` for each time it stands there, and `presence` once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens to look back over, at most [`MAX_RANGE`]; 0 turns penalties off.
    pub last: u32,
    /// The divisor, over 0; 1 changes nothing.
    pub repeat: f32,
    /// What each occurrence costs; less than 0 is a reward.
    pub frequency: f32,
    /// What occurring costs; less than 0 is a reward.
    pub presence: f32,
}

/// Checks a whole chain for a vocabulary of this size: its length, each link, that mirostat comes
/// last and that biased tokens exist.
pub fn check(samplers: &[Sampler], vocabulary: usize) -> Result<(), Error> {
    if samplers.len() > MAX_LINKS {
        return Err(Error::Invalid(format!(
            "a chain of {} samplers was given; at most {MAX_LINKS} are allowed",
            samplers.len()
        )));
    }
    let dry = samplers
        .iter()
        .filter(|link| matches!(link, Sampler::Dry(_)));
    if dry.count() > 1 {
        // Each goes through all that was said, for every token.
        let two = "a chain has several DRY samplers; at most one is allowed";
        return Err(Error::Invalid(two.into()));
    }
    for (index, sampler) in samplers.iter().enumerate() {
        sampler.check()?;
        match sampler {
            Sampler::Mirostat { .. } if index + 1 < samplers.len() => {
                return Err(Error::Invalid(
                    "mirostat stands before other samplers; it draws the token, so it must be the \
                     last"
                        .into(),
                ));
            }
            Sampler::LogitBias(biases) => {
                let outside = biases.iter().find(|bias| bias.0 as usize >= vocabulary);
                if let Some((token, _)) = outside {
                    return Err(Error::Invalid(format!(
                        "a logit bias names token {token}; the vocabulary has those under \
                         {vocabulary}"
                    )));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl Sampler {
    /// Checks that the parameters are in range; [`Error::Invalid`] says what is.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Temperature(value) => positive("the temperature", *value),
            Self::DynamicTemperature {
                temperature,
                range,
                exponent,
            } => {
                positive("the temperature", *temperature)?;
                positive("the temperature's range", *range)?;
                positive("the temperature's exponent", *exponent)
            }
            Self::TopK(_) => Ok(()),
            Self::TopP(mass) => unit("top-p", *mass),
            Self::MinP(ratio) => unit("min-p", *ratio),
            Self::Typical(mass) => unit("typical-p", *mass),
            Self::TopNSigma(count) => finite("top-n-sigma", *count),
            Self::Xtc {
                probability,
                threshold,
            } => {
                unit("XTC's probability", *probability)?;
                unit("XTC's threshold", *threshold)
            }
            Self::Dry(dry) => {
                positive("DRY's multiplier", dry.multiplier)?;
                expect(
                    dry.base.is_finite() && dry.base >= 1.0,
                    "DRY's base",
                    dry.base,
                    "1 or more",
                )?;
                look_back("DRY's range", dry.range)?;
                look_back("DRY's allowed length", dry.allowed_length)
            }
            Self::Penalties(penalties) | Self::AnswerPenalties(penalties) => {
                look_back("the penalties' range", penalties.last)?;
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
                positive("mirostat's tau", *tau)?;
                positive("mirostat's eta", *eta)
            }
            Self::LogitBias(biases) => check_biases(biases),
        }
    }
}

fn expect(holds: bool, name: &str, value: f32, expected: &str) -> Result<(), Error> {
    holds
        .then_some(())
        .ok_or_else(|| Error::Invalid(format!("{name} is {value}; it must be {expected}")))
}

fn unit(name: &str, value: f32) -> Result<(), Error> {
    let holds = (0.0..=1.0).contains(&value);
    expect(holds, name, value, "between 0 and 1")
}

fn positive(name: &str, value: f32) -> Result<(), Error> {
    let holds = value.is_finite() && value >= 0.0;
    expect(holds, name, value, "0 or more")
}

fn finite(name: &str, value: f32) -> Result<(), Error> {
    expect(value.is_finite(), name, value, "a finite number")
}

fn look_back(name: &str, tokens: u32) -> Result<(), Error> {
    (tokens <= MAX_RANGE).then_some(()).ok_or_else(|| {
        Error::Invalid(format!(
            "{name} is {tokens} tokens; it must be {MAX_RANGE} or less"
        ))
    })
}

fn check_biases(biases: &[(Token, f32)]) -> Result<(), Error> {
    if biases.len() > MAX_BIASES {
        return Err(Error::Invalid(format!(
            "{} logit biases were given; at most {MAX_BIASES} are allowed",
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
            return Err(Error::Invalid(format!(
                "token {token} has two logit biases; it must have one"
            )));
        }
    }
    Ok(())
}
