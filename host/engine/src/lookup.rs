//! What probably comes next in a text that repeats itself: prompt lookup.
//!
//! Where the last tokens of a text stand in it before, what followed them there is a good guess of
//! what follows now (Saxena, "Prompt Lookup Decoding", 2023): answers copy names, numbers, code and
//! keys of JSON. Of the latest [`PLACES`] places where the last [`SHORTEST`] tokens stand, that one
//! counts before which most tokens agree, up to [`LONGEST`]; of equals the latest.
//!
//! An index takes a fixed time for each token and each question, and some 30 bytes for each token, of
//! which there are as many as the context allows.

use crate::Token;
use std::collections::HashMap;

/// Tokens that have to agree, and how many are looked at.
pub const SHORTEST: usize = 3;
pub const LONGEST: usize = 16;
/// Places that are looked at.
pub const PLACES: usize = 32;

/// An index over the tokens of a sequence.
#[derive(Debug, Default)]
pub struct Lookup {
    /// By [`SHORTEST`] tokens, one past the last place where they stand.
    last: HashMap<[Token; SHORTEST], u32>,
    /// For the tokens that end before each position, one past the place where they stood before
    /// that; 0 if they did not.
    before: Vec<u32>,
}

impl Lookup {
    /// Guesses up to `most` tokens that come after `tokens`, into `draft`, which is emptied first. The
    /// tokens have to be those of the last call, or go on with them.
    pub fn propose(&mut self, tokens: &[Token], most: usize, draft: &mut Vec<Token>) {
        draft.clear();
        self.take(tokens);
        let Some(from) = self.place(tokens) else {
            return;
        };
        for at in from..from + most {
            // Past the end the guess goes on with itself: a period is repeated.
            let token = tokens.get(at).or_else(|| draft.get(at - tokens.len()));
            let Some(&token) = token else {
                return;
            };
            draft.push(token);
        }
    }

    fn take(&mut self, tokens: &[Token]) {
        for end in self.before.len()..=tokens.len() {
            let gram = tokens[..end].last_chunk::<SHORTEST>();
            let place = u32::try_from(end).unwrap_or(u32::MAX);
            let before = gram.and_then(|gram| self.last.insert(*gram, place));
            self.before.push(before.unwrap_or(0));
        }
    }

    /// One past the place where the end of the text stood before.
    fn place(&self, tokens: &[Token]) -> Option<usize> {
        let next = |place: &u32| Some(*self.before.get(*place as usize)?);
        let first = *self.before.last()?;
        let places = std::iter::successors(Some(first), next).take_while(|&place| place > 0);
        let mut best = None;
        for place in places.take(PLACES).map(|place| place as usize) {
            let ends = tokens[..place].iter().rev().zip(tokens.iter().rev());
            let agree = ends.take(LONGEST).take_while(|(a, b)| a == b).count();
            if best.is_none_or(|(most, _)| agree > most) {
                best = Some((agree, place));
            }
            if agree == LONGEST {
                break;
            }
        }
        best.map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proposed(tokens: &[Token], most: usize) -> Vec<Token> {
        let mut draft = Vec::new();
        Lookup::default().propose(tokens, most, &mut draft);
        draft
    }

    #[test]
    fn what_followed_the_same_tokens_is_proposed() {
        assert_eq!(proposed(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 2), [4, 5]);
        // The latest of two, unless more agrees before the other.
        assert_eq!(proposed(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], 1), [5]);
        assert_eq!(proposed(&[9, 1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3], 1), [4]);
        // A period goes on past the end.
        assert_eq!(proposed(&[7, 8, 7, 8, 7, 8], 5), [7, 8, 7, 8, 7]);
        assert_eq!(proposed(&[6, 6, 6, 6], 3), [6, 6, 6]);
        for nothing in [&[][..], &[1], &[1, 2, 3], &[1, 2, 3, 4, 2, 3]] {
            assert!(proposed(nothing, 4).is_empty(), "{nothing:?}");
        }
    }

    /// The same by its definition.
    fn naive(tokens: &[Token], most: usize) -> Vec<Token> {
        let agree = |place: usize| {
            let ends = tokens[..place].iter().rev().zip(tokens.iter().rev());
            ends.take(LONGEST).take_while(|(a, b)| a == b).count()
        };
        let places = (0..tokens.len()).rev();
        let places = places
            .filter(|&place| agree(place) >= SHORTEST)
            .take(PLACES);
        let Some(place) = places.max_by_key(|&place| (agree(place), place)) else {
            return Vec::new();
        };
        let mut text = tokens.to_vec();
        for at in place..place + most {
            text.push(text[at]);
        }
        text.split_off(tokens.len())
    }

    proptest! {
        #[test]
        fn an_index_that_grows_proposes_what_a_search_finds(
            tokens in (1..5u32).prop_flat_map(|symbols| {
                proptest::collection::vec(0..symbols, 0..200)
            }),
            steps in proptest::collection::vec(0..9usize, 1..40),
            most in 0..20usize,
        ) {
            let mut lookup = Lookup::default();
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
