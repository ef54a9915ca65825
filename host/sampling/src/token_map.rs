//! A number for some tokens of the vocabulary, such as how often each occurs in the history.
//!
//! Look-up is by index; clearing visits only the tokens that have a number. So the cost
//! of a row grows with the tokens that have a number, not with the vocabulary. Empty between samplers.

use crate::Token;

/// Maps tokens to numbers above 0.
#[derive(Debug, Default)]
pub struct TokenMap {
    numbers: Vec<u32>,
    /// Tokens with a number, each once.
    tokens: Vec<Token>,
}

impl TokenMap {
    /// Clears the map and sets the size of the vocabulary; tokens outside it never get a number.
    pub fn reset(&mut self, vocabulary: usize) {
        self.clear();
        self.numbers.resize(vocabulary, 0);
    }

    /// Sets a token's number to `number`, above 0, unless it is higher.
    pub fn raise(&mut self, token: Token, number: u32) {
        if let Some(old) = self.numbers.get_mut(token as usize) {
            if *old == 0 {
                self.tokens.push(token);
            }
            *old = number.max(*old);
        }
    }

    /// Adds 1 to a token's number.
    pub fn increment(&mut self, token: Token) {
        self.raise(token, self.get(token).saturating_add(1));
    }

    /// A token's number, or 0.
    pub fn get(&self, token: Token) -> u32 {
        self.numbers.get(token as usize).copied().unwrap_or(0)
    }

    /// The tokens with a number, each once.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Removes the tokens for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(Token) -> bool) {
        self.tokens.retain(|&token| {
            let keep = keep(token);
            if !keep {
                self.numbers[token as usize] = 0;
            }
            keep
        });
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        for token in self.tokens.drain(..) {
            self.numbers[token as usize] = 0;
        }
    }
}
