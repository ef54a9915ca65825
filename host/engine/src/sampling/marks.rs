//! A number for some of the tokens: how often one was said, how long a repetition it would
//! continue. Found by index and cleared by the list of those marked, so a row costs as many steps
//! as tokens are marked.

use crate::Token;

/// See the module. All marks are 0 between links.
#[derive(Debug, Default)]
pub struct Marks {
    of: Vec<u32>,
    tokens: Vec<Token>,
}

impl Marks {
    /// Makes room for a vocabulary; tokens outside it are never marked.
    pub fn fit(&mut self, vocabulary: usize) {
        self.clear();
        self.of.resize(vocabulary, 0);
    }

    /// Marks a token with `value`, over 0, unless its mark is higher.
    pub fn raise(&mut self, token: Token, value: u32) {
        if let Some(mark) = self.of.get_mut(token as usize) {
            if *mark == 0 {
                self.tokens.push(token);
            }
            *mark = value.max(*mark);
        }
    }

    /// Counts a token once more.
    pub fn count(&mut self, token: Token) {
        self.raise(token, self.of(token).saturating_add(1));
    }

    /// A token's mark, 0 if it has none.
    pub fn of(&self, token: Token) -> u32 {
        self.of.get(token as usize).copied().unwrap_or(0)
    }

    /// The marked tokens, each once.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Takes away the marks of tokens that are not to be `kept`.
    pub fn retain(&mut self, kept: impl Fn(Token) -> bool) {
        self.tokens.retain(|&token| {
            let kept = kept(token);
            if !kept {
                self.of[token as usize] = 0;
            }
            kept
        });
    }

    /// Takes all marks away.
    pub fn clear(&mut self) {
        for token in self.tokens.drain(..) {
            self.of[token as usize] = 0;
        }
    }
}
