//! What a simulated host does to the cells, and what it puts aside and brings back. All of it takes time.

use super::Host;
use crate::bench::sim::found::Bound;
use corral_engine::Backend;
use corral_engine::scheduler::{EntryId, Key, Memory, Time};
use std::time::Duration;

/// What moving the state of a token takes, as a part of a step's fixed time.
const MOVE: f64 = 1.0 / 1300.0;
/// Until what was put aside is at hand: at least, and for each token.
const FETCH: (Duration, Duration) = (Duration::from_millis(1), Duration::from_micros(60));

/// Something put aside that somebody waits for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub at: Time,
    entry: EntryId,
    key: Key,
}

impl Host {
    /// Does what has to be done to the cells.
    pub(super) fn see_to_memory(&mut self) {
        loop {
            let memory = self.scheduler.take_memory();
            if memory.is_empty() {
                return;
            }
            self.do_memory(&memory);
        }
    }

    pub(super) fn do_memory(&mut self, memory: &[Memory]) {
        for operation in memory {
            match *operation {
                Memory::Clear(seq) => self.backend.clear(seq),
                Memory::Share { from, to, length } => self.backend.share(from, to, length),
                Memory::Truncate { seq, length } => self.backend.truncate(seq, length),
                Memory::Spill { entry, seq } => {
                    let tokens = self.backend.length(seq);
                    self.moved(tokens);
                    match self.backend.save(seq, usize::MAX) {
                        Ok(state) => self.put(entry, tokens, state),
                        Err(_) => self.scheduler.lost(entry),
                    }
                }
                Memory::Fetch { entry, key } => {
                    let tokens = self.store.tokens_of(entry);
                    let at = self.now + FETCH.0 + FETCH.1 * tokens;
                    self.wanted.push(Wanted { at, entry, key });
                }
                Memory::Relocate(seq) => {
                    let state = self.backend.save(seq, usize::MAX);
                    self.moved(self.backend.length(seq));
                    self.backend.clear(seq);
                    let moved = state.is_ok_and(|state| self.backend.load(seq, &state));
                    if !moved {
                        self.scheduler.spoiled(seq);
                    }
                }
                Memory::Forget(entry) => {
                    self.store.take(entry);
                }
            }
        }
    }

    /// Brings back what is at hand and somebody waits for.
    pub(super) fn bring_back(&mut self) {
        for wanted in std::mem::take(&mut self.wanted) {
            if wanted.at > self.now {
                self.wanted.push(wanted);
                continue;
            }
            let (entry, key) = (wanted.entry, wanted.key);
            let Some(seq) = self.scheduler.restore(key, entry) else {
                self.see_to_memory();
                continue;
            };
            self.see_to_memory();
            match self.store.take(entry) {
                None => self.scheduler.lost(entry),
                Some((tokens, state)) => {
                    let success = self.backend.load(seq, &state);
                    self.moved(tokens);
                    if self.scheduler.restored(key, entry, success) {
                        self.put(entry, tokens, state);
                    }
                }
            }
        }
        self.see_to_memory();
    }

    /// Keeps a state, and gives others up for it if need be.
    pub(super) fn put(&mut self, entry: EntryId, tokens: u32, state: Vec<u8>) {
        for lost in self.store.put(entry, tokens, state) {
            self.found.counts.forgotten += 1;
            self.hits(Bound::Spill);
            self.scheduler.lost(lost);
        }
    }

    /// The state of so many tokens was moved.
    pub(super) fn moved(&mut self, tokens: u32) {
        let seconds = MOVE * self.setup.step * f64::from(tokens);
        self.now += Duration::from_secs_f64(seconds);
        self.scheduler.observe_state(tokens, seconds);
    }
}
