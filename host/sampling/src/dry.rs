//! DRY: lowers tokens that would continue a repetition, the more the longer it is.
//!
//! From p-e-w's proposal (oobabooga/text-generation-webui pull request 5677), with the semantics of
//! llama.cpp's sampler. If the last n tokens occurred before, the token that then followed loses
//! multiplier * base^(n - allowed length). No repetition reaches over a [breaker](DryBreakers).

pub mod breakers;

use crate::candidates::Candidates;
use crate::token_map::TokenMap;
use crate::{DryBreakers, RepetitionLengths, Token};
use std::sync::Arc;

/// Settings of DRY.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// What a token loses that continues a repetition of exactly the allowed length; 0 turns DRY off.
    pub multiplier: f32,
    /// The factor for each further token, 1 or more.
    pub base: f32,
    /// Tokens of the shortest repetition that is penalized.
    pub allowed_length: u32,
    /// Tokens to look back over, at most [`MAX_LOOK_BACK`](crate::MAX_LOOK_BACK); 0 turns DRY off.
    pub last_n: u32,
    /// Where repetitions end.
    pub breakers: Arc<DryBreakers>,
}

impl Dry {
    pub(crate) fn apply(
        &self,
        history: &[Token],
        candidates: &mut Candidates<'_>,
        tokens: &mut TokenMap,
        lengths: &mut RepetitionLengths,
    ) {
        let window = &history[history.len().saturating_sub(self.last_n as usize)..];
        if self.multiplier == 0.0 || window.len() <= self.allowed_length as usize {
            return;
        }
        let limit = self.breakers.tokens_since(window) as u32;
        if limit < self.allowed_length {
            return;
        }
        repetitions(window, lengths);
        for (back, length) in lengths.iter().enumerate().skip(1) {
            let length = limit.min(*length);
            let token = window[window.len() - back];
            if length >= self.allowed_length {
                // A map has no 0, so it holds length + 1.
                tokens.raise(token, length + 1);
            }
        }
        tokens.retain(|token| !self.breakers.contains(token));
        let max = self.max_exponent();
        candidates.change(tokens, |logit, number| {
            let exponent = (number - 1 - self.allowed_length).min(max);
            logit - self.multiplier * f64::from(self.base).powf(f64::from(exponent)) as f32
        });
        tokens.clear();
    }

    /// The exponent up to which powers of the base are finite.
    fn max_exponent(&self) -> u32 {
        if self.base > 1.000_001 {
            (f32::MAX.ln() / self.base.ln()) as u32
        } else {
            u32::MAX
        }
    }
}

/// Sets `lengths[back]` to the number of last tokens that also end `back` tokens earlier: the Z
/// function of the reversed tokens (Gusfield, 1997), in linear time.
fn repetitions(tokens: &[Token], lengths: &mut RepetitionLengths) {
    let count = tokens.len();
    let at = |index: usize| tokens[count - 1 - index];
    lengths.clear();
    lengths.resize(count, 0);
    // The match that reaches furthest: [start, end) equals [0, end - start).
    let (mut start, mut end) = (0, 0);
    for back in 1..count {
        let mut length = if back < end {
            (lengths[back - start] as usize).min(end - back)
        } else {
            0
        };
        while back + length < count && at(length) == at(back + length) {
            length += 1;
        }
        lengths[back] = length as u32;
        if back + length > end {
            (start, end) = (back, back + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn repetition_lengths_match_a_direct_count() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for length in (0..200).map(|round| round % 40) {
            let tokens: Vec<Token> = (0..length).map(|_| rng.random_range(0..4)).collect();
            let mut lengths = Vec::new();
            repetitions(&tokens, &mut lengths);
            for back in 1..tokens.len() {
                let before = &tokens[..tokens.len() - back];
                let equal = tokens.iter().rev().zip(before.iter().rev());
                let expected = equal.take_while(|(a, b)| a == b).count();
                assert_eq!(lengths[back] as usize, expected, "{tokens:?} {back}");
            }
        }
    }
}
