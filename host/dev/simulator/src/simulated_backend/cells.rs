//! The cells of sequences, which they share and free.

use super::SimulatedBackend;
use corral_scheduler::{AdapterId, SeqId, Token};

/// The tokens and cells of an id, by position.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedSequence {
    pub tokens: Vec<Token>,
    pub cells: Vec<u32>,
    /// The adapter that computed them.
    pub adapter: AdapterId,
}

impl SimulatedBackend {
    /// The tokens of an id.
    pub fn held(&self, seq: SeqId) -> &[Token] {
        &self.held[usize::from(seq.0)].tokens
    }

    /// The adapter that computed the tokens of an id.
    pub fn adapter_of(&self, seq: SeqId) -> AdapterId {
        self.held[usize::from(seq.0)].adapter
    }

    /// Used cells. A shared cell counts once.
    pub fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// The number of positions of a sequence.
    pub fn length(&self, seq: SeqId) -> u32 {
        u32::try_from(self.held(seq).len()).unwrap_or(u32::MAX)
    }

    /// Frees the cells of a sequence, except those it shares.
    pub fn clear(&mut self, seq: SeqId) {
        self.truncate(seq, 0);
    }

    /// Lets `to`, which holds nothing, share the first `length` positions of `from`.
    pub fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        let length = length as usize;
        let has = self.held(from).len();
        assert!(self.held(to).is_empty() && from != to, "{to:?} is in use");
        assert!(length <= has, "{from:?} has only {has} positions");
        assert!(self.can_truncate || length == has, "{from:?} as a whole");
        let from = &self.held[usize::from(from.0)];
        let shared = SimulatedSequence {
            tokens: from.tokens[..length].to_vec(),
            cells: from.cells[..length].to_vec(),
            adapter: from.adapter,
        };
        for &cell in &shared.cells {
            self.holders[cell as usize] += 1;
        }
        self.held[usize::from(to.0)] = shared;
    }

    /// Frees the positions of a sequence from `length` on, except those it shares.
    pub fn truncate(&mut self, seq: SeqId, length: u32) {
        let held = &mut self.held[usize::from(seq.0)];
        let has = held.tokens.len();
        let length = has.min(length as usize);
        assert!(
            self.can_truncate || length == 0 || length == has,
            "{seq:?} as a whole"
        );
        held.tokens.truncate(length);
        for cell in held.cells.drain(length..) {
            let holders = &mut self.holders[cell as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.insert(cell);
                self.taken.remove(&cell);
            }
        }
    }

    /// Takes a free cell for a token.
    pub(crate) fn push(&mut self, seq: SeqId, token: Token) {
        let cell = self.free.pop_first().expect("there is a free cell");
        self.taken.insert(cell);
        self.holders[cell as usize] = 1;
        let adapter = self.adapter;
        let held = &mut self.held[usize::from(seq.0)];
        if held.tokens.is_empty() {
            held.adapter = adapter;
        }
        held.tokens.push(token);
        held.cells.push(cell);
    }
}
