//! Sampling from the highest logits of a row, if the rest of it stayed on the device.
//!
//! The result equals that of the whole row, to the last bit, or is [`TopKMiss`]: then the caller
//! needs the whole row.
//!
//! **Known tokens.** The device selects `k` tokens such that no other token has a higher logit, in no
//! order and with no rule among equals. The *border* is the lowest selected logit. All other tokens
//! have at most that, and which of them have exactly that is unknown. So the tokens *above* the border
//! are the first of the row in [`falling`] order, and are known. There is no border if no other token
//! may be drawn: the row has only `k` tokens, the border is minus infinity, or the mask allows only
//! selected tokens.
//!
//! **Samplers.** [`cut`] applies a chain up to its first sampler that leaves only known tokens; after
//! it nothing depends on the rest of the row. Before it, the chain may have
//!
//! - samplers whose settings turn them off;
//! - samplers that lower some tokens and raise none: biases of 0 or less, penalties without rewards.
//!   Other tokens stay at or below the border; tokens that fall to it are no longer known. Such a
//!   sampler must come before the temperature: after it, the lowered logits would be rounded twice, and
//!   one could rise;
//! - one temperature over 0. Division keeps the order but can make logits equal, so the border is
//!   divided too, and tokens that do not stay above it are no longer known.
//!
//! Cutting samplers are greedy (an empty chain or a temperature of 0), top-k of at most
//! [`MAX_SORTED`], and min-p with a threshold above the border. The list they leave equals the one
//! that [`Candidates`] leaves of the whole row in tokens, logits, order and count, and no random number
//! was drawn before. So every later sum and draw is the same.
//!
//! **Prediction.** [`top_k_suffices`] tells before a request runs whether its chain can work from `k`
//! logits. It counts removed and lowered tokens, so a miss remains possible only by ties at the border,
//! by temperatures that make logits equal or infinite, by masks, and by min-p.
//!
//! A selection with NaN, which no sound model computes, is always a miss: the device may have placed
//! NaN anywhere, so other selected tokens need not be the highest.

use crate::apply;
use crate::candidate_list::{self, Candidate, MAX_SORTED, falling};
use crate::candidates::{Candidates, Workspace};
use crate::softmax::clamp_divisor;
use crate::{Sampler, Scratch, Token};

/// Logits of the next token, as far as the host has them.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// One for each token of the vocabulary.
    Full(&'a [f32]),
    /// The highest.
    TopK(TopLogits<'a>),
}

/// The highest logits of a row, in no order.
#[derive(Clone, Copy, Debug)]
pub struct TopLogits<'a> {
    /// The selected tokens.
    pub tokens: &'a [Token],
    /// One for each of `tokens`.
    pub logits: &'a [f32],
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
}

/// The highest logits do not determine the result; the whole row does. Nothing was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the top-k logits do not determine the result; the whole row is needed")]
pub struct TopKMiss;

/// The logit above which tokens are known; `None` if all tokens that may be drawn are known.
type Border = Option<f32>;

impl TopLogits<'_> {
    /// What [`most_likely`](crate::most_likely) returns for the whole row.
    pub fn most_likely(
        &self,
        allowed: Option<&[u32]>,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<Vec<(Token, f32)>, TopKMiss> {
        let list = &mut scratch.list;
        let border = self.list_known(allowed, list)?;
        if border.is_some() && list.len() < count {
            return Err(TopKMiss);
        }
        list.sort_unstable_by(falling);
        list.truncate(count);
        let pair = |candidate: &Candidate| (candidate.token, candidate.logit);
        Ok(list.iter().map(pair).collect())
    }

    /// Fills the list with the known tokens that may be drawn.
    fn list_known(
        &self,
        allowed: Option<&[u32]>,
        list: &mut Vec<Candidate>,
    ) -> Result<Border, TopKMiss> {
        list.clear();
        let inside = |token: &Token| (*token as usize) < self.vocabulary;
        let sound = self.tokens.len() == self.logits.len() && self.tokens.iter().all(inside);
        if !sound || self.logits.iter().any(|logit| logit.is_nan()) {
            return Err(TopKMiss);
        }
        let is_allowed = |token: Token| {
            allowed.is_none_or(|words| {
                let word = words.get(token as usize / 32).copied().unwrap_or(0);
                word >> (token % 32) & 1 == 1
            })
        };
        let lowest = self.logits.iter().copied().fold(f32::INFINITY, f32::min);
        let has_all_allowed = allowed.is_some_and(|words| {
            let all: usize = words.iter().map(|word| word.count_ones() as usize).sum();
            let selected = self.tokens.iter().filter(|token| is_allowed(**token));
            selected.count() == all
        });
        let has_all = self.tokens.len() >= self.vocabulary || lowest == f32::NEG_INFINITY;
        let border = (!has_all && !has_all_allowed).then_some(lowest);
        for (&token, &logit) in self.tokens.iter().zip(self.logits) {
            if logit.is_finite() && is_allowed(token) && is_above(logit, border) {
                list.push(Candidate { token, logit });
            }
        }
        Ok(border)
    }
}

fn is_above(logit: f32, border: Border) -> bool {
    border.is_none_or(|border| logit > border)
}

/// What a sampler does to a row of which only the top is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    /// Its settings turn it off.
    Nothing,
    /// It raises no token, and lowers at most this many.
    Lowers(u32),
    /// It divides all logits.
    Divides(f32),
    /// It can leave only known tokens.
    Cuts(Cut),
    /// It needs the whole row.
    NeedsRow,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// To the most likely token.
    Greedy,
    /// To this many of the most likely.
    TopK(u32),
    /// To those at least this many times as likely as the most likely one.
    MinP(f32),
}

impl Effect {
    /// `output` is an upper bound of the output's length.
    fn of(sampler: &Sampler, output: u32) -> Self {
        let temperature = |value: f32| match value > 0.0 {
            true => Self::Divides(value),
            false => Self::Cuts(Cut::Greedy),
        };
        let nothing_if = |off: bool| {
            if off { Self::Nothing } else { Self::NeedsRow }
        };
        match sampler {
            Sampler::Temperature(value) => temperature(*value),
            Sampler::DynamicTemperature {
                temperature: value,
                range,
                ..
            } if *range <= 0.0 => temperature(*value),
            Sampler::TopK(0) => Self::Nothing,
            // From a whole row, so large a top-k leaves its list unsorted, in an order that is unknown here.
            Sampler::TopK(count) if *count > MAX_SORTED => Self::NeedsRow,
            Sampler::TopK(count) => Self::Cuts(Cut::TopK(*count)),
            Sampler::MinP(ratio) if *ratio > 0.0 => Self::Cuts(Cut::MinP(*ratio)),
            Sampler::MinP(_) => Self::Nothing,
            Sampler::TopP(mass) | Sampler::TypicalP(mass) => nothing_if(*mass >= 1.0),
            Sampler::TopNSigma(count) => nothing_if(*count <= 0.0),
            Sampler::Xtc {
                probability,
                threshold,
            } => nothing_if(*probability <= 0.0 || *threshold > 0.5),
            Sampler::Dry(dry) => nothing_if(dry.multiplier == 0.0),
            Sampler::Penalties(settings) | Sampler::OutputPenalties(settings) => {
                let output_only = matches!(sampler, Sampler::OutputPenalties(_));
                let count = match output_only {
                    true => settings.last_n.min(output),
                    false => settings.last_n,
                };
                let changes =
                    settings.repeat != 1.0 || settings.frequency != 0.0 || settings.presence != 0.0;
                let lowers =
                    settings.repeat >= 1.0 && settings.frequency >= 0.0 && settings.presence >= 0.0;
                match (changes && count > 0, lowers) {
                    (false, _) => Self::Nothing,
                    (true, true) => Self::Lowers(count),
                    (true, false) => Self::NeedsRow,
                }
            }
            Sampler::LogitBias(biases) => {
                let lowers = biases.iter().all(|(_, bias)| *bias <= 0.0);
                match lowers {
                    true => Self::Lowers(u32::try_from(biases.len()).unwrap_or(u32::MAX)),
                    false => Self::NeedsRow,
                }
            }
            Sampler::DynamicTemperature { .. } | Sampler::Mirostat { .. } => Self::NeedsRow,
        }
    }
}

/// Whether the `k` highest logits of each row usually determine what a chain draws; the output has at
/// most `output` tokens. See the module.
pub fn top_k_suffices(samplers: &[Sampler], k: u32, output: u32) -> bool {
    let (mut lowered, mut divided) = (0_u32, false);
    for sampler in samplers {
        match Effect::of(sampler, output) {
            Effect::Nothing => {}
            Effect::Lowers(count) if !divided => lowered = lowered.saturating_add(count),
            Effect::Divides(_) if !divided => divided = true,
            // After a division, rounding decides which of two tokens is the most likely.
            Effect::Cuts(Cut::Greedy) if !divided => return lowered.saturating_add(1) < k,
            Effect::Cuts(Cut::TopK(count)) => return lowered.saturating_add(count) < k,
            Effect::Cuts(Cut::MinP(_)) => return lowered.saturating_add(1) < k,
            _ => return false,
        }
    }
    samplers.is_empty() && 1 < k
}

/// Applies a chain up to its first cutting sampler. Returns the candidates and the number of samplers
/// applied. `output` is the part of the history after the prompt.
pub fn cut<'a>(
    top: TopLogits<'_>,
    samplers: &[Sampler],
    (history, output): (&[Token], &[Token]),
    allowed: Option<&[u32]>,
    scratch: &'a mut Scratch,
) -> Result<(Candidates<'a>, Workspace<'a>, usize), TopKMiss> {
    let border = top.list_known(allowed, &mut scratch.list)?;
    let (mut candidates, mut workspace) = Candidates::from_list(top.vocabulary, scratch);
    if samplers.is_empty() {
        keep_best(candidates.list(), border)?;
        return Ok((candidates, workspace, 0));
    }
    let mut divisor = None;
    for (index, sampler) in samplers.iter().enumerate() {
        match Effect::of(sampler, u32::MAX) {
            Effect::Nothing => continue,
            Effect::Lowers(_) if divisor.is_none() => {
                lower(sampler, &mut candidates, &mut workspace, (history, output));
                candidates.list().retain(|one| is_above(one.logit, border));
                continue;
            }
            Effect::Divides(by) if divisor.is_none() => {
                divisor = Some(clamp_divisor(by));
                continue;
            }
            Effect::Cuts(Cut::Greedy) if divisor.is_none() => {
                keep_best(candidates.list(), border)?;
            }
            Effect::Cuts(Cut::TopK(count)) if (count as usize) < top.vocabulary => {
                let count = count as usize;
                let border = divide(candidates.list(), border, divisor)?;
                if border.is_some() && candidates.list().len() < count {
                    return Err(TopKMiss);
                }
                candidate_list::keep_first(candidates.list(), count, falling);
                candidates.list().sort_unstable_by(falling);
                candidates.set_counted(count);
            }
            Effect::Cuts(Cut::MinP(ratio)) => {
                let border = divide(candidates.list(), border, divisor)?;
                keep_from(candidates.list(), border, ratio)?;
                let counted = candidates.list().len();
                // Min-p leaves a row without any candidate as it is.
                if counted > 0 {
                    candidates.set_counted(counted);
                }
            }
            _ => return Err(TopKMiss),
        }
        return Ok((candidates, workspace, index + 1));
    }
    Err(TopKMiss)
}

fn lower(
    sampler: &Sampler,
    candidates: &mut Candidates<'_>,
    workspace: &mut Workspace<'_>,
    (history, output): (&[Token], &[Token]),
) {
    let tokens = &mut *workspace.tokens;
    match sampler {
        Sampler::Penalties(settings) => apply::penalties(candidates, tokens, history, settings),
        Sampler::OutputPenalties(settings) => {
            apply::penalties(candidates, tokens, output, settings)
        }
        Sampler::LogitBias(biases) => apply::logit_bias(candidates, tokens, biases),
        _ => {}
    }
}

/// Keeps the most likely token, the lowest id among equals.
fn keep_best(list: &mut Vec<Candidate>, border: Border) -> Result<(), TopKMiss> {
    let highest = candidate_list::highest(list);
    let equal = || list.iter().filter(move |one| one.logit == highest);
    // 0 and -0 are equal in some comparisons and not in others.
    if equal().any(|one| one.logit.to_bits() != highest.to_bits()) {
        return Err(TopKMiss);
    }
    let best = equal().min_by_key(|one| one.token).copied();
    if best.is_none() && border.is_some() {
        return Err(TopKMiss);
    }
    list.clear();
    list.extend(best);
    Ok(())
}

/// Divides the known logits as a whole row is divided, and removes those that are no longer known.
/// Returns the divided border.
fn divide(
    list: &mut Vec<Candidate>,
    border: Border,
    divisor: Option<f32>,
) -> Result<Border, TopKMiss> {
    let Some(divisor) = divisor else {
        return Ok(border);
    };
    let border = border.map(|border| border / divisor);
    for candidate in list.iter_mut() {
        candidate.logit /= divisor;
    }
    let finite = list.iter().all(|one| one.logit.is_finite());
    if !finite || border.is_some_and(|border| !border.is_finite()) {
        return Err(TopKMiss);
    }
    list.retain(|one| is_above(one.logit, border));
    Ok(border)
}

/// Keeps the tokens at least `ratio` times as likely as the most likely one, by rising token.
fn keep_from(list: &mut Vec<Candidate>, border: Border, ratio: f32) -> Result<(), TopKMiss> {
    // Of an empty list this is minus infinity, which is above no border.
    let lowest = candidate_list::highest(list) + ratio.ln();
    if border.is_some_and(|border| lowest <= border) {
        return Err(TopKMiss);
    }
    list.retain(|one| one.logit >= lowest);
    list.sort_unstable_by_key(|one| one.token);
    Ok(())
}
