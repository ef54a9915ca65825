//! DRY's sequence breakers: token sequences that end a repetition, such as a line break or the mark
//! before a name. They are built once from text and the vocabulary, then shared.

use crate::{Error, Token};
use std::collections::HashMap;

/// Breaker texts that a request may give.
pub const MAX_BREAKERS: usize = 16;
/// Bytes of a breaker text; llama.cpp truncates longer ones to this.
pub const MAX_BREAKER_BYTES: usize = 40;
/// Tokens after the first token of a breaker; llama.cpp truncates longer ones to this.
pub const MAX_BREAKER_TAIL: usize = 20;
/// Token sequences of all breakers together: a text of one letter is in many thousands of tokens.
pub const MAX_BREAKER_SEQUENCES: usize = 1 << 17;

/// Token sequences at which repetitions end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryBreakers {
    /// What follows a sequence's first token, by that token.
    tails: HashMap<Token, Vec<Box<[Token]>>>,
    sequences: usize,
}

impl DryBreakers {
    /// Checks breaker texts: at most [`MAX_BREAKERS`], each of 1 to [`MAX_BREAKER_BYTES`] bytes.
    pub fn check(texts: &[String]) -> Result<(), Error> {
        if texts.len() > MAX_BREAKERS {
            return Err(Error(format!(
                "the request has {} DRY breakers; it may have at most {MAX_BREAKERS}",
                texts.len()
            )));
        }
        let fits = |text: &&String| (1..=MAX_BREAKER_BYTES).contains(&text.len());
        match texts.iter().find(|text| !fits(text)) {
            None => Ok(()),
            Some(text) => Err(Error(format!(
                "a DRY breaker has {} bytes; it must have 1 to {MAX_BREAKER_BYTES}",
                text.len()
            ))),
        }
    }

    /// Breakers from texts that pass [`DryBreakers::check`], built as llama.cpp builds them
    /// (`get_overlapping_token_sequences`): each token whose piece contains the text, and each whose
    /// piece ends with the start of the text, followed by the tokens of the rest.
    ///
    /// `pieces` are the bytes of all tokens by rising id, control tokens by their names. `tokenize`
    /// turns text into tokens, special tokens read as plain text, or returns `None` if it cannot.
    ///
    /// llama.cpp splits a text between any two bytes. This skips splits within a letter, since the
    /// rest is no text.
    pub fn from_text<P: AsRef<[u8]>>(
        texts: &[String],
        pieces: impl Iterator<Item = P> + Clone,
        tokenize: impl Fn(&str) -> Option<Vec<Token>>,
    ) -> Result<Self, Error> {
        Self::check(texts)?;
        let mut breakers = Self::default();
        for text in texts {
            let rests: Vec<Option<Vec<Token>>> = (0..text.len())
                .map(|at| {
                    let mut tail = tokenize(text.get(at..).filter(|_| at > 0)?)?;
                    tail.truncate(MAX_BREAKER_TAIL);
                    Some(tail)
                })
                .collect();
            for (token, piece) in (0..).zip(pieces.clone()) {
                breakers.add_piece(token, piece.as_ref(), text.as_bytes(), &rests)?;
            }
        }
        Ok(breakers)
    }

    /// Adds the sequences that begin with a token; `rests` are the tokens of `text` from each byte.
    fn add_piece(
        &mut self,
        token: Token,
        piece: &[u8],
        text: &[u8],
        rests: &[Option<Vec<Token>>],
    ) -> Result<(), Error> {
        if piece.windows(text.len()).any(|part| part == text) {
            return self.add(token, &[]);
        }
        for start in 0..piece.len() {
            let end = &piece[start..];
            if text.starts_with(end)
                && let Some(Some(tail)) = rests.get(end.len())
            {
                self.add(token, tail)?;
            }
        }
        Ok(())
    }

    /// Breakers from token sequences, each of at least one token.
    #[cfg(test)]
    pub(crate) fn from_tokens(sequences: &[&[Token]]) -> Self {
        let mut breakers = Self::default();
        for sequence in sequences {
            breakers.add(sequence[0], &sequence[1..]).unwrap();
        }
        breakers
    }

    fn add(&mut self, head: Token, tail: &[Token]) -> Result<(), Error> {
        let tails = self.tails.entry(head).or_default();
        if tails.iter().any(|known| **known == *tail) {
            return Ok(());
        }
        if self.sequences == MAX_BREAKER_SEQUENCES {
            return Err(Error(format!(
                "the DRY breakers match more than {MAX_BREAKER_SEQUENCES} token sequences; use \
                 fewer or longer breakers"
            )));
        }
        self.sequences += 1;
        tails.push(tail.into());
        Ok(())
    }

    /// Number of token sequences.
    pub fn len(&self) -> usize {
        self.sequences
    }

    /// Whether there are no breakers.
    pub fn is_empty(&self) -> bool {
        self.sequences == 0
    }

    /// Whether a token alone is a breaker.
    pub fn contains(&self, token: Token) -> bool {
        self.tails
            .get(&token)
            .is_some_and(|tails| tails.iter().any(|tail| tail.is_empty()))
    }

    /// Number of tokens after the last breaker in `history`; all of them if it has none.
    pub fn tokens_since(&self, history: &[Token]) -> usize {
        if self.tails.is_empty() {
            return history.len();
        }
        for (after, head) in history.iter().rev().enumerate() {
            let rest = &history[history.len() - after..];
            let longest = self.tails.get(head).and_then(|tails| {
                let fitting = tails.iter().filter(|tail| rest.starts_with(tail));
                fitting.map(|tail| tail.len()).max()
            });
            if let Some(longest) = longest {
                return after - longest;
            }
        }
        history.len()
    }
}
