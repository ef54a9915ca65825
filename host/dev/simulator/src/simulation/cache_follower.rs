//! A follower of the cache's changes, whose picture must match what is cached after every step.

use super::Simulation;
use crate::pseudo_random;
use corral_scheduler::{CacheChange, EntryLocation, PrefixHolder, PrefixScope, Token};
use std::collections::{BTreeSet, HashMap};

/// Tokens of a block.
const BLOCK: u32 = 4;
/// Steps after which the follower forgets everything and takes the contents.
const RESTART_INTERVAL: u64 = 16;

/// Blocks by scope and location; each as a hash of all tokens up to its end.
type Blocks = BTreeSet<(PrefixScope, EntryLocation, u64)>;

/// What the changes told.
#[derive(Debug, Default)]
pub(super) struct CacheFollower {
    held: HashMap<PrefixHolder, (PrefixScope, EntryLocation, Vec<Token>)>,
    steps: u64,
}

impl CacheFollower {
    fn apply(&mut self, change: CacheChange) {
        let mut tokens = match self.held.remove(&change.holder) {
            Some((scope, location, tokens)) => {
                assert_eq!(scope, change.scope, "the scope never changes");
                assert!(change.kept == 0 || location == change.location);
                tokens
            }
            None => Vec::new(),
        };
        assert!(change.kept as usize <= tokens.len(), "{change:?}");
        tokens.truncate(change.kept as usize);
        tokens.extend(change.tokens);
        assert!(tokens.len().is_multiple_of(BLOCK as usize));
        if !tokens.is_empty() {
            let held = (change.scope, change.location, tokens);
            self.held.insert(change.holder, held);
        }
    }

    fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::new();
        for (scope, location, tokens) in self.held.values() {
            add_blocks(&mut blocks, *scope, *location, tokens);
        }
        blocks
    }
}

fn add_blocks(blocks: &mut Blocks, scope: PrefixScope, location: EntryLocation, tokens: &[Token]) {
    let mut hash = 0;
    for block in tokens.chunks_exact(BLOCK as usize) {
        hash = pseudo_random((hash, block));
        blocks.insert((scope, location, hash));
    }
}

impl Simulation {
    /// Checks in every step that the changes of the cache tell what is cached.
    #[must_use]
    pub fn with_cache_follower(mut self) -> Self {
        let follows = self.scheduler.follow_cache(BLOCK);
        self.follower = follows.then(CacheFollower::default);
        self
    }

    pub(super) fn check_cache_changes(&mut self) {
        let Some(mut follower) = self.follower.take() else {
            return;
        };
        follower.steps += 1;
        let changes = match follower.steps.is_multiple_of(RESTART_INTERVAL) {
            true => {
                follower.held.clear();
                self.scheduler.cache_contents()
            }
            false => self.scheduler.cache_changes(),
        };
        for change in changes {
            follower.apply(change);
        }
        assert_eq!(follower.blocks(), self.cached_blocks());
        self.follower = Some(follower);
    }

    /// The blocks in the backend's cells and outside of them.
    fn cached_blocks(&self) -> Blocks {
        let mut blocks = Blocks::new();
        for request in self.scheduler.requests() {
            let tokens = &self.backend.held(request.seq)[..request.computed as usize];
            let scope = self.scheduler.scope(request.id);
            add_blocks(&mut blocks, scope, EntryLocation::Cells, tokens);
        }
        for entry in self.scheduler.entries() {
            let text = self.scheduler.entry_text(entry.id).expect("it exists");
            let tokens = match entry.seq {
                Some(seq) => &self.backend.held(seq)[..entry.tokens as usize],
                None => text.1,
            };
            add_blocks(&mut blocks, entry.scope, entry.location, tokens);
        }
        blocks
    }
}
