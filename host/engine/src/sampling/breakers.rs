//! Where DRY's repetitions end: token sequences at which looking back stops, such as a line break
//! or the mark before a name. They are compiled once from text and the vocabulary, then shared.

use crate::{Error, Token};
use std::collections::HashMap;

/// Texts that breakers may be built from.
pub const MAX_BREAKERS: usize = 16;
/// Bytes of one of them; llama.cpp cuts longer ones off here.
pub const MAX_BREAKER_BYTES: usize = 40;
/// Tokens after the first of a sequence; llama.cpp cuts longer ones off here.
pub const MAX_TAIL: usize = 20;
/// Sequences in all: a text of one letter is in many thousands of a vocabulary's pieces.
pub const MAX_SEQUENCES: usize = 1 << 17;

/// Sequences of tokens by their first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers {
    tails: HashMap<Token, Vec<Box<[Token]>>>,
    sequences: usize,
}

impl Breakers {
    /// Breakers of token sequences: at most [`MAX_SEQUENCES`], each of 1 to [`MAX_TAIL`] + 1.
    pub fn from_tokens<'a>(
        sequences: impl IntoIterator<Item = &'a [Token]>,
    ) -> Result<Self, Error> {
        let mut breakers = Self::default();
        for sequence in sequences {
            match sequence {
                [head, tail @ ..] if tail.len() <= MAX_TAIL => breakers.add(*head, tail)?,
                _ => {
                    return Err(Error::Invalid(format!(
                        "a DRY breaker has {} tokens; it must have 1 to {}",
                        sequence.len(),
                        MAX_TAIL + 1
                    )));
                }
            }
        }
        Ok(breakers)
    }

    /// Checks texts that breakers are to be built from: at most [`MAX_BREAKERS`] of 1 to
    /// [`MAX_BREAKER_BYTES`] bytes.
    pub fn check(texts: &[String]) -> Result<(), Error> {
        if texts.len() > MAX_BREAKERS {
            return Err(Error::Invalid(format!(
                "{} DRY breakers were given; at most {MAX_BREAKERS} are allowed",
                texts.len()
            )));
        }
        let fits = |text: &&String| (1..=MAX_BREAKER_BYTES).contains(&text.len());
        match texts.iter().find(|text| !fits(text)) {
            None => Ok(()),
            Some(text) => Err(Error::Invalid(format!(
                "a DRY breaker has {} bytes; it must have 1 to {MAX_BREAKER_BYTES}",
                text.len()
            ))),
        }
    }

    /// Breakers of texts, as llama.cpp's `llama_sampler_init_dry` builds them
    /// (`get_overlapping_token_sequences`): each token whose piece holds the text, and each whose
    /// piece ends within it, followed by the tokens of the text's rest.
    ///
    /// `pieces` are the bytes of all tokens by rising id, control tokens with their names;
    /// `tokenize` turns text into tokens, special ones taken as plain text, `None` if it can't.
    ///
    /// The texts must pass [`Self::check`]. llama.cpp splits a
    /// text between any two bytes; here a piece that ends within a letter is passed over, since
    /// its rest is no text.
    pub fn from_text<P: AsRef<[u8]>>(
        texts: &[String],
        pieces: impl Iterator<Item = P> + Clone,
        tokenize: impl Fn(&str) -> Option<Vec<Token>>,
    ) -> Result<Self, Error> {
        Self::check(texts)?;
        let mut breakers = Self::default();
        for text in texts {
            // The rests of a text are as many as its letters: each is turned into tokens once.
            let rests: Vec<Option<Vec<Token>>> = (0..text.len())
                .map(|at| {
                    let mut tail = tokenize(text.get(at..).filter(|_| at > 0)?)?;
                    tail.truncate(MAX_TAIL);
                    Some(tail)
                })
                .collect();
            for (token, piece) in (0..).zip(pieces.clone()) {
                breakers.add_piece(token, piece.as_ref(), text.as_bytes(), &rests)?;
            }
        }
        Ok(breakers)
    }

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

    fn add(&mut self, head: Token, tail: &[Token]) -> Result<(), Error> {
        let tails = self.tails.entry(head).or_default();
        if tails.iter().any(|known| **known == *tail) {
            return Ok(());
        }
        if self.sequences == MAX_SEQUENCES {
            return Err(Error::Invalid(format!(
                "the DRY breakers stand for more than {MAX_SEQUENCES} sequences of tokens; give \
                 fewer or longer ones"
            )));
        }
        self.sequences += 1;
        tails.push(tail.into());
        Ok(())
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.sequences
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sequences == 0
    }

    /// Whether a token alone is a breaker.
    pub fn breaks(&self, token: Token) -> bool {
        self.tails
            .get(&token)
            .is_some_and(|tails| tails.iter().any(|tail| tail.is_empty()))
    }

    /// Number of tokens after the last breaker in `history`, all of them if there is none.
    pub fn since(&self, history: &[Token]) -> usize {
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
