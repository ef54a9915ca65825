//! Prompt-lookup drafting (Saxena, "Prompt Lookup Decoding", 2023): drafts the tokens that followed the sequence's
//! last tokens earlier.
//!
//! Answers copy names, numbers, code and JSON keys from their prompt. Among the latest [`MAX_MATCHES`] earlier
//! occurrences of the last [`MIN_MATCH`] tokens, the one with the longest match before it counts, up to
//! [`MAX_MATCH`] tokens; among equals the latest.
//!
//! The index takes constant time per token and per draft, and some 30 bytes per token.

use crate::Token;
use corral_llama::IMAGE_TOKENS;
use std::collections::HashMap;

/// Shortest match that yields drafts, in tokens.
pub const MIN_MATCH: usize = 3;
/// Longest match to compare, in tokens.
pub const MAX_MATCH: usize = 16;
/// Most earlier occurrences to compare.
pub const MAX_MATCHES: usize = 32;

/// An index over the tokens of one sequence.
#[derive(Debug, Default)]
pub struct PromptLookup {
    /// For each [`MIN_MATCH`]-gram, the end of its last occurrence.
    last: HashMap<[Token; MIN_MATCH], u32>,
    /// For each position, the end of the previous occurrence of the gram that ends there; 0 for none.
    previous: Vec<u32>,
}

impl PromptLookup {
    /// Replaces `drafts` by up to `most` tokens that are likely to follow `tokens`. `tokens` must begin with the
    /// tokens of the last call.
    pub fn propose(&mut self, tokens: &[Token], most: usize, drafts: &mut Vec<Token>) {
        drafts.clear();
        self.extend(tokens);
        let Some(from) = self.best_match(tokens) else {
            return;
        };
        for at in from..from + most {
            // Past the end of the text the drafts continue from their own start, as in a text that repeats.
            let token = tokens.get(at).or_else(|| drafts.get(at - tokens.len()));
            // An image is never generated.
            let Some(&token) = token.filter(|token| !IMAGE_TOKENS.contains(token)) else {
                return;
            };
            drafts.push(token);
        }
    }

    fn extend(&mut self, tokens: &[Token]) {
        for end in self.previous.len()..=tokens.len() {
            let gram = tokens[..end].last_chunk::<MIN_MATCH>();
            let at = u32::try_from(end).unwrap_or(u32::MAX);
            let previous = gram.and_then(|gram| self.last.insert(*gram, at));
            self.previous.push(previous.unwrap_or(0));
        }
    }

    /// The end of the earlier occurrence with the longest match.
    fn best_match(&self, tokens: &[Token]) -> Option<usize> {
        let previous = |end: &u32| Some(*self.previous.get(*end as usize)?);
        let first = *self.previous.last()?;
        let ends = std::iter::successors(Some(first), previous).take_while(|&end| end > 0);
        let mut best = None;
        for end in ends.take(MAX_MATCHES).map(|end| end as usize) {
            let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
            let length = pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|(longest, _)| length > longest) {
                best = Some((length, end));
            }
            if length == MAX_MATCH {
                break;
            }
        }
        best.map(|(_, end)| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(tokens: &[Token], most: usize) -> Vec<Token> {
        let mut draft = Vec::new();
        PromptLookup::default().propose(tokens, most, &mut draft);
        draft
    }

    #[test]
    fn drafts_what_followed_the_longest_match() {
        assert_eq!(draft(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 2), [4, 5]);
        // The latest of equal matches; a longer earlier match wins over it.
        assert_eq!(draft(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], 1), [5]);
        assert_eq!(draft(&[9, 1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3], 1), [4]);
        // A period continues past the end.
        assert_eq!(draft(&[7, 8, 7, 8, 7, 8], 5), [7, 8, 7, 8, 7]);
        assert_eq!(draft(&[6, 6, 6, 6], 3), [6, 6, 6]);
        for tokens in [&[][..], &[1], &[1, 2, 3], &[1, 2, 3, 4, 2, 3]] {
            assert!(draft(tokens, 4).is_empty(), "{tokens:?}");
        }
    }

    /// The definition, without an index.
    fn naive(tokens: &[Token], most: usize) -> Vec<Token> {
        let length = |end: usize| {
            let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
            pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
        };
        let ends = (0..tokens.len()).rev();
        let ends = ends
            .filter(|&end| length(end) >= MIN_MATCH)
            .take(MAX_MATCHES);
        let Some(end) = ends.max_by_key(|&end| (length(end), end)) else {
            return Vec::new();
        };
        let mut text = tokens.to_vec();
        for at in end..end + most {
            text.push(text[at]);
        }
        text.split_off(tokens.len())
    }

    proptest! {
        #[test]
        fn growing_index_equals_search(
            tokens in (1..5u32).prop_flat_map(|symbols| {
                proptest::collection::vec(0..symbols, 0..200)
            }),
            steps in proptest::collection::vec(0..9usize, 1..40),
            most in 0..20usize,
        ) {
            let mut lookup = PromptLookup::default();
            let mut draft = Vec::new();
            let mut length = 0;
            for step in steps {
                length = (length + step).min(tokens.len());
                lookup.propose(&tokens[..length], most, &mut draft);
                prop_assert_eq!(&draft, &naive(&tokens[..length], most));
            }
        }
    }
}
