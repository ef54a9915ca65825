//! DRY: tokens that would continue a repetition lose the more, the longer it is.
//!
//! From p-e-w's proposal (oobabooga/text-generation-webui pull request 5677), with the semantics of
//! llama.cpp's sampler. If the last n tokens stood before, the token that then followed loses
//! multiplier * base^(n - allowed length). A repetition does not reach over a breaker.

use super::breakers::Breakers;
use super::left::Left;
use super::marks::Marks;
use crate::Token;
use std::sync::Arc;

/// Settings of DRY.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// What a repetition of the allowed length costs; 0 turns DRY off.
    pub multiplier: f32,
    /// The factor for each further token, 1 or more.
    pub base: f32,
    /// Tokens that may be repeated free of charge.
    pub allowed_length: u32,
    /// Tokens to look back over, at most [`MAX_RANGE`](super::MAX_RANGE); 0 turns DRY off.
    pub range: u32,
    /// Where repetitions end.
    pub breakers: Arc<Breakers>,
}

/// Lengths of repetitions, kept from row to row.
pub type Lengths = Vec<u32>;

impl Dry {
    pub(super) fn apply(
        &self,
        history: &[Token],
        left: &mut Left<'_>,
        marks: &mut Marks,
        lengths: &mut Lengths,
    ) {
        let window = &history[history.len().saturating_sub(self.range as usize)..];
        if self.multiplier == 0.0 || window.len() <= self.allowed_length as usize {
            return;
        }
        let limit = self.breakers.since(window) as u32;
        if limit < self.allowed_length {
            return;
        }
        repetitions(window, lengths);
        for (back, length) in lengths.iter().enumerate().skip(1) {
            let length = limit.min(*length);
            let token = window[window.len() - back];
            if length >= self.allowed_length {
                // One more, since a mark of 0 is none.
                marks.raise(token, length + 1);
            }
        }
        marks.retain(|token| !self.breakers.breaks(token));
        let most = self.most_factors();
        left.change(marks, |logit, mark| {
            let factors = (mark - 1 - self.allowed_length).min(most);
            logit - self.multiplier * f64::from(self.base).powf(f64::from(factors)) as f32
        });
        marks.clear();
    }

    /// As many factors as a finite number has room for.
    fn most_factors(&self) -> u32 {
        if self.base > 1.000_001 {
            (f32::MAX.ln() / self.base.ln()) as u32
        } else {
            u32::MAX
        }
    }
}

/// Sets `lengths[back]` to how many of the last tokens are also those before the last `back`
/// tokens: the Z function of the tokens read backwards (Gusfield, 1997), in linear time.
fn repetitions(tokens: &[Token], lengths: &mut Lengths) {
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

    #[test]
    fn repetitions_are_as_long_as_counted_one_by_one() {
        for seed in 0..200_u32 {
            let mut state = seed;
            let tokens: Vec<Token> = (0..seed % 40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 30
                })
                .collect();
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
