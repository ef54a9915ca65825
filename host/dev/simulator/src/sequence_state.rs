//! Saving and loading the state of a sequence.

use crate::SimulatedBackend;
use corral_scheduler::{AdapterId, SeqId, Token};

/// The first bytes of a saved state.
const MARK: [u8; 4] = *b"CRLS";

/// Why a state was not saved. The sequence is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// The state is larger than the caller allows.
    #[error("the state has {bytes} bytes; at most {limit} are allowed")]
    TooLarge {
        /// The size of the state.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A fault of [`SimulatedBackend::with_state_faults`].
    #[error("no memory for {bytes} bytes of state")]
    NoMemory {
        /// The size of the state.
        bytes: usize,
    },
}

impl SimulatedBackend {
    /// A state as [`SimulatedBackend::save`] returns it, of a sequence that was computed elsewhere.
    pub fn state_of(tokens: &[Token], adapter: AdapterId) -> Vec<u8> {
        let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let mut state = MARK.to_vec();
        state.extend((length | u32::from(adapter.0) << 24).to_le_bytes());
        state.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        state
    }

    /// A copy of the state of a sequence, of at most `limit` bytes.
    pub fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        let fails = self.state_fails();
        let state = Self::state_of(self.held(seq), self.adapter_of(seq));
        let bytes = state.len();
        if bytes > limit {
            return Err(SaveError::TooLarge { bytes, limit });
        }
        if fails {
            return Err(SaveError::NoMemory { bytes });
        }
        Ok(state)
    }

    /// Loads a saved state into a sequence that holds nothing. False if it does not fit or is damaged.
    #[must_use]
    pub fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        assert!(self.held(seq).is_empty(), "{seq:?} is in use");
        let fails = self.state_fails();
        let Some((tokens, adapter)) = self.read(state) else {
            return false;
        };
        if fails || tokens.len() > self.free.len() {
            return false;
        }
        for token in tokens {
            self.push(seq, token);
        }
        self.held[usize::from(seq.0)].adapter = adapter;
        true
    }

    /// Whether this save or load fails.
    fn state_fails(&mut self) -> bool {
        self.states += 1;
        self.state_faults.contains(&(self.states - 1))
    }

    /// The tokens of a saved state and their adapter.
    fn read(&self, state: &[u8]) -> Option<(Vec<Token>, AdapterId)> {
        let (count, rest) = state.strip_prefix(&MARK)?.split_first_chunk()?;
        let (tokens, more) = rest.as_chunks();
        let tokens: Vec<_> = tokens.iter().copied().map(Token::from_le_bytes).collect();
        // The highest byte is the adapter.
        let [low, middle, high, adapter] = *count;
        let count = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let whole = more.is_empty() && tokens.len() == count;
        let known = tokens.iter().all(|&token| token < self.size.vocabulary);
        (whole && known).then_some((tokens, AdapterId(adapter)))
    }
}
