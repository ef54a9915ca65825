//! The blocks of a model that are published: which are in which location, and how many holders have them there.
//!
//! A block is named by a hash of its tokens and of the block before it, so its hash stands for all tokens up to its end. The
//! first block begins with the salt: a digest of the owner and the adapter. A block is stored in a location with its first
//! holder there, and removed with its last. Whoever holds a block holds all before it, so what
//! a holder adds to a location begins with blocks that are stored there, if any, and ends with new ones.

use corral_engine::{CACHE_BLOCK, EntryLocation, OwnedChange, PrefixHolder, PrefixOwner, Token};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

const BLOCK: usize = CACHE_BLOCK as usize;

/// An event of the format that subscribers know from vLLM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Stored {
        hashes: Vec<u64>,
        /// `None` if the first of the blocks begins a text.
        parent: Option<u64>,
        /// Of all the blocks.
        tokens: Vec<Token>,
        location: EntryLocation,
        adapter: Option<Arc<str>>,
        /// The owner's, if the first of the blocks begins a text.
        salt: Option<String>,
    },
    Removed {
        hashes: Vec<u64>,
        location: EntryLocation,
    },
    Cleared,
}

impl Event {
    /// Tokens or hashes in it.
    pub(super) fn numbers(&self) -> usize {
        match self {
            Self::Stored { tokens, .. } => tokens.len(),
            Self::Removed { hashes, .. } => hashes.len(),
            Self::Cleared => 1,
        }
    }
}

/// The blocks of a model.
#[derive(Debug, Default)]
pub(super) struct PublishedBlocks {
    holders: HashMap<PrefixHolder, HeldBlocks>,
    copies: HashMap<(u64, EntryLocation), u32>,
}

#[derive(Debug)]
struct HeldBlocks {
    location: EntryLocation,
    hashes: Vec<u64>,
}

/// The salt of an owner: what a router must know to tell its prefixes from those of others.
pub(super) fn salt(owner: &PrefixOwner) -> String {
    HEXLOWER.encode(owner.digest())
}

impl PublishedBlocks {
    /// Whether no block is published.
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Applies a change and adds the events that tell it.
    pub(super) fn apply(&mut self, owned: OwnedChange, events: &mut Vec<Event>) {
        let OwnedChange {
            change,
            owner,
            adapter,
        } = owned;
        let before = self.holders.remove(&change.holder).unwrap_or(HeldBlocks {
            location: change.location,
            hashes: Vec::new(),
        });
        let kept = change.kept as usize / BLOCK;
        if kept > before.hashes.len() {
            // The feed left out tokens before these.
            self.holders.insert(change.holder, before);
            return;
        }
        let mut hashes = before.hashes[..kept].to_vec();
        let mut last = hashes.last().copied();
        for block in change.tokens.chunks_exact(BLOCK) {
            let parent = last.unwrap_or_else(|| root(&owner, adapter.as_deref()));
            let hash = block_hash(parent, block);
            hashes.push(hash);
            last = Some(hash);
        }
        let location = change.location;
        // Added before others are removed, so that no block goes and comes back.
        let mut known = kept;
        for (index, hash) in hashes.iter().enumerate().skip(kept) {
            let copies = self.copies.entry((*hash, location)).or_default();
            *copies += 1;
            if *copies > 1 {
                known = index + 1;
            }
        }
        if known < hashes.len() {
            let parent = known.checked_sub(1).map(|index| hashes[index]);
            events.push(Event::Stored {
                hashes: hashes[known..].to_vec(),
                parent,
                tokens: change.tokens[(known - kept) * BLOCK..].to_vec(),
                location,
                adapter,
                salt: parent.is_none().then(|| salt(&owner)),
            });
        }
        let is_moved = before.location != location;
        let released = if is_moved { 0 } else { kept };
        events.extend(self.release(&before.hashes[released..], before.location));
        if !hashes.is_empty() {
            self.holders
                .insert(change.holder, HeldBlocks { location, hashes });
        }
    }

    /// Removes all blocks. Returns the events that tell it.
    pub(super) fn clear(&mut self) -> Vec<Event> {
        let holders = std::mem::take(&mut self.holders).into_values();
        let released = holders.filter_map(|held| self.release(&held.hashes, held.location));
        released.collect()
    }

    /// Ends that a holder has these blocks. The last ones are removed first.
    fn release(&mut self, hashes: &[u64], location: EntryLocation) -> Option<Event> {
        let mut removed = Vec::new();
        for hash in hashes.iter().rev() {
            let key = (*hash, location);
            match self.copies.get_mut(&key) {
                Some(copies) if *copies > 1 => *copies -= 1,
                _ => {
                    self.copies.remove(&key);
                    removed.push(*hash);
                }
            }
        }
        let is_empty = removed.is_empty();
        (!is_empty).then_some(Event::Removed {
            hashes: removed,
            location,
        })
    }
}

/// What the first block of a text follows.
fn root(owner: &PrefixOwner, adapter: Option<&str>) -> u64 {
    let hash = Sha256::new().chain_update(owner.digest());
    number(hash.chain_update(adapter.unwrap_or_default()))
}

fn block_hash(parent: u64, tokens: &[Token]) -> u64 {
    let hash = Sha256::new().chain_update(parent.to_be_bytes());
    number(
        tokens
            .iter()
            .fold(hash, |hash, token| hash.chain_update(token.to_be_bytes())),
    )
}

/// The first bytes of a hash. Never 0, which some subscribers take for no parent.
fn number(hash: Sha256) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    u64::from_be_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_engine::{CacheChange, EntryId, PrefixScope, RequestId};

    const CELLS: EntryLocation = EntryLocation::Cells;
    const MEMORY: EntryLocation = EntryLocation::Memory;
    const REQUEST: PrefixHolder = PrefixHolder::Running(RequestId(1));
    const ENTRY: PrefixHolder = PrefixHolder::Entry(EntryId(1));

    fn change(
        holder: PrefixHolder,
        owner: &str,
        location: EntryLocation,
        kept: u32,
        tokens: &[Token],
    ) -> OwnedChange {
        OwnedChange {
            change: CacheChange {
                holder,
                scope: PrefixScope(0),
                location,
                kept,
                tokens: tokens.to_vec(),
            },
            owner: PrefixOwner::new("tenant", owner),
            adapter: None,
        }
    }

    fn apply(blocks: &mut PublishedBlocks, change: OwnedChange) -> Vec<Event> {
        let mut events = Vec::new();
        blocks.apply(change, &mut events);
        events
    }

    #[test]
    fn block_stays_until_its_last_holder_goes() {
        let mut blocks = PublishedBlocks::default();
        let tokens = Vec::from_iter(0..48);
        let events = apply(&mut blocks, change(REQUEST, "a", CELLS, 0, &tokens[..32]));
        let [
            Event::Stored {
                hashes,
                parent: None,
                salt: Some(first),
                ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(hashes.len(), 2);
        assert_eq!(first.len(), 64);
        let last = hashes[1];
        let events = apply(&mut blocks, change(REQUEST, "a", CELLS, 32, &tokens[32..]));
        let [
            Event::Stored {
                hashes,
                parent,
                tokens: stored,
                salt: None,
                ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(
            (hashes.len(), *parent, &stored[..]),
            (1, Some(last), &tokens[32..])
        );
        assert_eq!(
            apply(&mut blocks, change(ENTRY, "a", CELLS, 0, &tokens[..32])),
            []
        );
        let events = apply(&mut blocks, change(REQUEST, "a", CELLS, 0, &[]));
        let removed = Event::Removed {
            hashes: hashes.clone(),
            location: CELLS,
        };
        assert_eq!(events, [removed]);
        let events = apply(&mut blocks, change(ENTRY, "a", MEMORY, 0, &tokens[..32]));
        assert!(matches!(
            &events[..],
            [
                Event::Stored {
                    location: MEMORY,
                    parent: None,
                    ..
                },
                Event::Removed {
                    location: CELLS,
                    ..
                },
            ]
        ));
        apply(&mut blocks, change(ENTRY, "a", MEMORY, 0, &[]));
        assert!(blocks.is_empty() && blocks.holders.is_empty());
    }

    #[test]
    fn cleared_blocks_are_removed_once() {
        let mut blocks = PublishedBlocks::default();
        let tokens = Vec::from_iter(0..48);
        apply(&mut blocks, change(REQUEST, "a", CELLS, 0, &tokens));
        apply(&mut blocks, change(ENTRY, "a", CELLS, 0, &tokens[..32]));
        let removed = blocks.clear().into_iter().map(|event| match event {
            Event::Removed { hashes, .. } => hashes,
            other => panic!("{other:?}"),
        });
        let removed = removed.collect::<Vec<_>>().concat();
        assert_eq!(removed.len(), 3);
        assert!(blocks.is_empty() && blocks.holders.is_empty());
        let stored = apply(&mut blocks, change(REQUEST, "a", CELLS, 0, &tokens));
        let [Event::Stored { hashes, .. }] = &stored[..] else {
            panic!("{stored:?}");
        };
        let reversed = Vec::from_iter(hashes.iter().rev().copied());
        assert_eq!(removed, reversed, "the last ones first");
    }

    #[test]
    fn owners_and_adapters_have_other_hashes() {
        let tokens = [5; 16];
        let stored = |owned: OwnedChange| {
            let events = apply(&mut PublishedBlocks::default(), owned);
            match &events[..] {
                [Event::Stored { hashes, .. }] => hashes[0],
                _ => panic!("{events:?}"),
            }
        };
        let adapted = OwnedChange {
            adapter: Some("poet".into()),
            ..change(REQUEST, "a", CELLS, 0, &tokens)
        };
        let hashes = [
            stored(change(REQUEST, "a", CELLS, 0, &tokens)),
            stored(change(REQUEST, "b", CELLS, 0, &tokens)),
            stored(adapted),
        ];
        assert_eq!(hashes[0], stored(change(ENTRY, "a", MEMORY, 0, &tokens)));
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
    }

    #[test]
    fn tokens_after_a_gap_are_ignored() {
        let mut blocks = PublishedBlocks::default();
        assert_eq!(
            apply(&mut blocks, change(REQUEST, "a", CELLS, 16, &[5; 16])),
            []
        );
        apply(&mut blocks, change(REQUEST, "a", CELLS, 0, &[]));
        assert!(blocks.holders.is_empty());
    }
}
