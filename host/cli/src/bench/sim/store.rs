//! What a simulated host has put aside: states of sequences, so many tokens of them at most.

use corral_engine::scheduler::EntryId;
use std::collections::{BTreeMap, HashMap};

/// One state.
#[derive(Debug)]
struct Kept {
    /// When it was put; rises.
    stamp: u64,
    tokens: u32,
    state: Vec<u8>,
}

/// All of them. Where there are too many, the one goes first that was put first.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Tokens that there is room for.
    room: u64,
    tokens: u64,
    most: u64,
    last: u64,
    kept: HashMap<EntryId, Kept>,
    order: BTreeMap<u64, EntryId>,
}

impl Store {
    /// An empty one with room for so many tokens.
    pub fn new(room: u64) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Keeps a state. Returns those that are lost for it, or itself where it is too large.
    pub fn put(&mut self, entry: EntryId, tokens: u32, state: Vec<u8>) -> Vec<EntryId> {
        self.take(entry);
        if u64::from(tokens) > self.room {
            return vec![entry];
        }
        self.last += 1;
        let stamp = self.last;
        self.order.insert(stamp, entry);
        let kept = Kept {
            stamp,
            tokens,
            state,
        };
        self.kept.insert(entry, kept);
        self.tokens += u64::from(tokens);
        let mut lost = Vec::new();
        while self.tokens > self.room {
            let Some((_, oldest)) = self.order.first_key_value() else {
                break;
            };
            let oldest = *oldest;
            self.take(oldest);
            lost.push(oldest);
        }
        self.most = self.most.max(self.tokens);
        lost
    }

    /// Keeps a state no longer.
    pub fn take(&mut self, entry: EntryId) -> Option<(u32, Vec<u8>)> {
        let kept = self.kept.remove(&entry)?;
        self.order.remove(&kept.stamp);
        self.tokens -= u64::from(kept.tokens);
        Some((kept.tokens, kept.state))
    }

    /// Tokens of a state; 0 if it is not there.
    pub fn tokens_of(&self, entry: EntryId) -> u32 {
        self.kept.get(&entry).map_or(0, |kept| kept.tokens)
    }

    /// The most tokens that there ever were.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.order.is_empty() && self.tokens == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_go_when_there_is_no_room() {
        let mut store = Store::new(10);
        let [a, b, c, d] = [1, 2, 3, 4].map(EntryId);
        assert!(store.put(a, 4, vec![1]).is_empty());
        assert!(store.put(b, 4, vec![2]).is_empty());
        assert_eq!(store.put(c, 4, vec![3]), [a]);
        assert_eq!(store.put(d, 11, vec![4]), [d]);
        assert_eq!((store.tokens_of(a), store.tokens_of(b)), (0, 4));
        // Put again, it is the last to go.
        assert!(store.put(b, 5, vec![2]).is_empty());
        assert_eq!(store.put(a, 4, vec![1]), [c]);
        assert_eq!(store.take(b), Some((5, vec![2])));
        assert_eq!(store.take(b), None);
        assert_eq!(store.take(a), Some((4, vec![1])));
        assert!(store.is_empty());
        assert_eq!(store.most(), 9);
    }
}
