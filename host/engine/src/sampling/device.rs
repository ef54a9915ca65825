//! Sampling from the highest logits of a row, where the rest of it stayed on the device.
//!
//! What comes of it is what comes of the whole row, to the last bit, or nothing at all: [`Unsettled`].
//! Then the whole row has to be looked at.
//!
//! **What is known.** The device selects `K` tokens such that none that it left behind has a higher logit
//! than any of them, in no order and with no rule among equals. Let the *border* be the lowest of them.
//! Then all others have at most that, and whichever of them have just that nobody knows. So the tokens
//! *above* the border are known with their places: they are the first of the row in the order of
//! [`falling`], whatever the rest is. There is no border where nothing was left behind that could be
//! drawn: the row has no more tokens, the lowest one seen is minus infinity, or a mask allows none but
//! those that were seen.
//!
//! **What follows from it.** A chain is gone through up to its *cut*, the first link that leaves but known
//! tokens; from there on nothing depends on the rest. Before it there may be
//!
//! - links that do nothing with their settings;
//! - links that *lower* some tokens and raise none: biases of 0 or less, penalties that don't reward.
//!   Whoever was left behind has no more than the border afterwards, and those that fall to it are
//!   known no longer. With a divisor before them their logits would be rounded twice, which can raise
//!   one; so they have to stand before the temperature;
//! - one temperature over 0. Dividing keeps the order but can make two logits equal; so the border is
//!   divided, too, and who does not stay above it is not known any more.
//!
//! Cuts are the most likely token (an empty chain, or a temperature of 0), the `k` most likely ones, if they
//! are no more than [`MOST_SORTED`], and min-p, where its threshold is above the border. The list that they leave has the same tokens with the
//! same logits in the same order as that which [`Left`] leaves of the whole row ([`Left::keep_top`] sorts
//! it for that), counted in the same way. So each sum after it, and each draw, is the same, since no
//! random number was drawn before.
//!
//! Whether it will suffice is told before ([`follows_from_top`]): but for ties at the border, temperatures
//! that make more logits equal to it or infinite, masks and min-p, what it lets pass is always settled, since no more tokens are cut off or lowered than are above
//! the border.
//!
//! A row that holds NaN, which no sound model computes, is never settled if one is seen. The device may
//! have put it anywhere else; then what was selected is not what is likeliest.

use super::Scratch;
use super::left::{Left, Tools};
use super::links;
use super::list::{self, Candidate, MOST_SORTED, falling};
use super::sampler::Sampler;
use super::whole::clamp_divisor;
use crate::Token;

/// What is seen of the logits after a token.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// All of them, one for each token of the vocabulary.
    Whole(&'a [f32]),
    /// The highest.
    Top(Top<'a>),
}

/// The highest logits of a row, in no order.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    /// Whose they are.
    pub tokens: &'a [Token],
    /// One for each of `tokens`.
    pub logits: &'a [f32],
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
}

/// The highest logits don't tell what the whole row does. Nothing was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the likeliest tokens alone do not tell it")]
pub struct Unsettled;

/// Above which logit tokens are known; `None` where all that matter are.
type Border = Option<f32>;

impl Top<'_> {
    /// The first `count` of the row in the order of [`top`](super::top), with which it agrees.
    pub fn first(
        &self,
        allowed: Option<&[u32]>,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<Vec<(Token, f32)>, Unsettled> {
        let list = &mut scratch.list;
        let border = self.known(allowed, list)?;
        if border.is_some() && list.len() < count {
            return Err(Unsettled);
        }
        list.sort_unstable_by(falling);
        list.truncate(count);
        let pair = |candidate: &Candidate| (candidate.token, candidate.logit);
        Ok(list.iter().map(pair).collect())
    }

    /// Fills the list with the tokens that are known and may be drawn.
    fn known(
        &self,
        allowed: Option<&[u32]>,
        list: &mut Vec<Candidate>,
    ) -> Result<Border, Unsettled> {
        list.clear();
        let inside = |token: &Token| (*token as usize) < self.vocabulary;
        let sound = self.tokens.len() == self.logits.len() && self.tokens.iter().all(inside);
        if !sound || self.logits.iter().any(|logit| logit.is_nan()) {
            return Err(Unsettled);
        }
        let open = |token: Token| {
            allowed.is_none_or(|words| {
                let word = words.get(token as usize / 32).copied().unwrap_or(0);
                word >> (token % 32) & 1 == 1
            })
        };
        let least = self.logits.iter().copied().fold(f32::INFINITY, f32::min);
        let all_allowed = allowed.is_some_and(|words| {
            let all: usize = words.iter().map(|word| word.count_ones() as usize).sum();
            let seen = self.tokens.iter().filter(|token| open(**token)).count();
            seen == all
        });
        let everything = self.tokens.len() >= self.vocabulary || least == f32::NEG_INFINITY;
        let border = (!everything && !all_allowed).then_some(least);
        for (&token, &logit) in self.tokens.iter().zip(self.logits) {
            if logit.is_finite() && open(token) && is_above(logit, border) {
                list.push(Candidate { token, logit });
            }
        }
        Ok(border)
    }
}

fn is_above(logit: f32, border: Border) -> bool {
    border.is_none_or(|border| logit > border)
}

/// What a link is to a row of which only the top is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// It does nothing.
    Nothing,
    /// It raises no token, and lowers so many at most.
    Lowers(u32),
    /// It divides all logits.
    Divides(f32),
    /// What it leaves is known.
    Cuts(Cut),
    /// It wants to know the whole row.
    Reads,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// To the most likely token.
    Best,
    /// To so many of the most likely.
    Most(u32),
    /// To those that are so many times as likely as the most likely one.
    From(f32),
}

impl Part {
    /// `answer` is a bound on the tokens of the generation.
    fn of(sampler: &Sampler, answer: u32) -> Self {
        let temperature = |value: f32| match value > 0.0 {
            true => Self::Divides(value),
            false => Self::Cuts(Cut::Best),
        };
        let nothing_if = |off: bool| if off { Self::Nothing } else { Self::Reads };
        match sampler {
            Sampler::Temperature(value) => temperature(*value),
            Sampler::DynamicTemperature {
                temperature: value,
                range,
                ..
            } if *range <= 0.0 => temperature(*value),
            Sampler::TopK(0) => Self::Nothing,
            // In which order the whole row leaves them is not known here.
            Sampler::TopK(count) if *count > MOST_SORTED => Self::Reads,
            Sampler::TopK(count) => Self::Cuts(Cut::Most(*count)),
            Sampler::MinP(ratio) if *ratio > 0.0 => Self::Cuts(Cut::From(*ratio)),
            Sampler::MinP(_) => Self::Nothing,
            Sampler::TopP(mass) | Sampler::Typical(mass) => nothing_if(*mass >= 1.0),
            Sampler::TopNSigma(count) => nothing_if(*count <= 0.0),
            Sampler::Xtc {
                probability,
                threshold,
            } => nothing_if(*probability <= 0.0 || *threshold > 0.5),
            Sampler::Dry(dry) => nothing_if(dry.multiplier == 0.0),
            Sampler::Penalties(set) | Sampler::AnswerPenalties(set) => {
                let own = matches!(sampler, Sampler::AnswerPenalties(_));
                let most = if own { set.last.min(answer) } else { set.last };
                let changes = set.repeat != 1.0 || set.frequency != 0.0 || set.presence != 0.0;
                let lowers = set.repeat >= 1.0 && set.frequency >= 0.0 && set.presence >= 0.0;
                match (changes && most > 0, lowers) {
                    (false, _) => Self::Nothing,
                    (true, true) => Self::Lowers(most),
                    (true, false) => Self::Reads,
                }
            }
            Sampler::LogitBias(biases) => {
                let lowers = biases.iter().all(|(_, bias)| *bias <= 0.0);
                match lowers {
                    true => Self::Lowers(u32::try_from(biases.len()).unwrap_or(u32::MAX)),
                    false => Self::Reads,
                }
            }
            Sampler::DynamicTemperature { .. } | Sampler::Mirostat { .. } => Self::Reads,
        }
    }
}

/// Whether what a chain draws follows from the `k` highest logits of each row, as a rule: see the module.
/// The generation has at most `answer` tokens.
pub fn follows_from_top(samplers: &[Sampler], k: u32, answer: u32) -> bool {
    let (mut lowered, mut divided) = (0_u32, false);
    for sampler in samplers {
        match Part::of(sampler, answer) {
            Part::Nothing => {}
            Part::Lowers(most) if !divided => lowered = lowered.saturating_add(most),
            Part::Divides(_) if !divided => divided = true,
            // With a divisor, which of two is the most likely is a matter of how they are rounded.
            Part::Cuts(Cut::Best) if !divided => return lowered.saturating_add(1) < k,
            Part::Cuts(Cut::Most(count)) => return lowered.saturating_add(count) < k,
            Part::Cuts(Cut::From(_)) => return lowered.saturating_add(1) < k,
            _ => return false,
        }
    }
    samplers.is_empty() && 1 < k
}

/// Goes through a chain up to its cut. Returns what that leaves, and how many links were gone through.
/// `answer` is the part of the history that belongs to the generation.
pub(super) fn cut<'a>(
    top: Top<'_>,
    samplers: &[Sampler],
    (history, answer): (&[Token], &[Token]),
    allowed: Option<&[u32]>,
    scratch: &'a mut Scratch,
) -> Result<(Left<'a>, Tools<'a>, usize), Unsettled> {
    let border = top.known(allowed, &mut scratch.list)?;
    let (mut left, mut tools) = Left::listed(top.vocabulary, scratch);
    if samplers.is_empty() {
        keep_best(left.list(), border)?;
        return Ok((left, tools, 0));
    }
    let mut divisor = None;
    for (place, sampler) in samplers.iter().enumerate() {
        match Part::of(sampler, u32::MAX) {
            Part::Nothing => {}
            Part::Lowers(_) if divisor.is_none() => {
                lower(sampler, &mut left, &mut tools, (history, answer));
                left.list().retain(|one| is_above(one.logit, border));
            }
            Part::Divides(by) if divisor.is_none() => divisor = Some(clamp_divisor(by)),
            Part::Cuts(Cut::Best) if divisor.is_none() => {
                keep_best(left.list(), border)?;
                return Ok((left, tools, place + 1));
            }
            Part::Cuts(Cut::Most(count)) if (count as usize) < top.vocabulary => {
                let count = count as usize;
                let border = divide(left.list(), border, divisor)?;
                if border.is_some() && left.list().len() < count {
                    return Err(Unsettled);
                }
                list::keep_first(left.list(), count, falling);
                left.list().sort_unstable_by(falling);
                left.count_as(count);
                return Ok((left, tools, place + 1));
            }
            Part::Cuts(Cut::From(ratio)) => {
                let border = divide(left.list(), border, divisor)?;
                keep_from(left.list(), border, ratio)?;
                let counted = left.list().len();
                // Of a row without a most likely token the link leaves all as it is.
                if counted > 0 {
                    left.count_as(counted);
                }
                return Ok((left, tools, place + 1));
            }
            _ => return Err(Unsettled),
        }
    }
    Err(Unsettled)
}

fn lower(
    sampler: &Sampler,
    left: &mut Left<'_>,
    tools: &mut Tools<'_>,
    (history, answer): (&[Token], &[Token]),
) {
    let marks = &mut *tools.marks;
    match sampler {
        Sampler::Penalties(set) => links::penalties(left, marks, history, set),
        Sampler::AnswerPenalties(set) => links::penalties(left, marks, answer, set),
        Sampler::LogitBias(biases) => links::logit_bias(left, marks, biases),
        _ => {}
    }
}

/// Leaves the most likely token, the lowest id among equals.
fn keep_best(list: &mut Vec<Candidate>, border: Border) -> Result<(), Unsettled> {
    let most = list::most(list);
    let equal = || list.iter().filter(move |one| one.logit == most);
    // Of 0 and -0 some say that they are equal.
    if equal().any(|one| one.logit.to_bits() != most.to_bits()) {
        return Err(Unsettled);
    }
    let best = equal().min_by_key(|one| one.token).copied();
    if best.is_none() && border.is_some() {
        return Err(Unsettled);
    }
    list.clear();
    list.extend(best);
    Ok(())
}

/// Divides what is known, as a whole row is divided. Returns where its border is then.
fn divide(
    list: &mut Vec<Candidate>,
    border: Border,
    divisor: Option<f32>,
) -> Result<Border, Unsettled> {
    let Some(divisor) = divisor else {
        return Ok(border);
    };
    let border = border.map(|border| border / divisor);
    for candidate in list.iter_mut() {
        candidate.logit /= divisor;
    }
    let finite = list.iter().all(|one| one.logit.is_finite());
    if !finite || border.is_some_and(|border| !border.is_finite()) {
        return Err(Unsettled);
    }
    list.retain(|one| is_above(one.logit, border));
    Ok(border)
}

/// Leaves the tokens that are `ratio` times as likely as the most likely one, by rising token.
fn keep_from(list: &mut Vec<Candidate>, border: Border, ratio: f32) -> Result<(), Unsettled> {
    let least = list::most(list) + ratio.ln();
    // Of an empty list it is minus infinity, which is above no border.
    if border.is_some_and(|border| least <= border) {
        return Err(Unsettled);
    }
    list.retain(|one| one.logit >= least);
    list.sort_unstable_by_key(|one| one.token);
    Ok(())
}
