//! What the simulation does to cells, and what it puts aside and brings back.

use super::Simulation;
use corral_scheduler::{EntryId, MemoryOp, RequestId};

/// Something put aside that somebody waits for.
#[derive(Debug)]
pub(super) struct Wanted {
    entry: EntryId,
    key: RequestId,
    /// Looks until it is at hand.
    looks: u64,
}

impl Simulation {
    /// Does what has to be done to the cells.
    pub(super) fn see_to_memory(&mut self) {
        loop {
            let memory = self.scheduler.take_memory_ops();
            if memory.is_empty() {
                return;
            }
            self.do_memory(&memory);
        }
    }

    pub(super) fn do_memory(&mut self, memory: &[MemoryOp]) {
        for operation in memory {
            match *operation {
                MemoryOp::Clear(seq) => self.backend.clear(seq),
                MemoryOp::Share { from, to, length } => self.backend.share(from, to, length),
                MemoryOp::Truncate { seq, length } => self.backend.truncate(seq, length),
                MemoryOp::SwapOut { entry, seq } => {
                    let saved = if self.store_fails() {
                        None
                    } else {
                        self.backend.save(seq, usize::MAX).ok()
                    };
                    match saved {
                        Some(state) => {
                            self.store.insert(entry, state);
                        }
                        None => self.scheduler.entry_lost(entry),
                    }
                }
                MemoryOp::SwapIn {
                    entry,
                    request: key,
                } => {
                    let looks = self.stored % 3;
                    self.wanted.push(Wanted { entry, key, looks });
                }
                MemoryOp::Compact(seq) => {
                    let state = self.backend.save(seq, usize::MAX);
                    self.backend.clear(seq);
                    let moved = state.is_ok_and(|state| self.backend.load(seq, &state));
                    if !moved {
                        self.scheduler.compaction_failed(seq);
                    }
                }
                MemoryOp::Discard(entry) => {
                    self.store.remove(&entry);
                }
            }
        }
    }

    fn store_fails(&mut self) -> bool {
        self.stored += 1;
        self.store_fails
            .is_some_and(|every| self.stored.is_multiple_of(every))
    }

    /// Brings back what was put aside and is wanted again.
    pub(super) fn bring_back(&mut self) {
        for mut wanted in std::mem::take(&mut self.wanted) {
            if wanted.looks > 0 {
                wanted.looks -= 1;
                self.wanted.push(wanted);
                continue;
            }
            let (entry, key) = (wanted.entry, wanted.key);
            let Some(seq) = self.scheduler.begin_swap_in(key, entry) else {
                self.see_to_memory();
                continue;
            };
            self.see_to_memory();
            let fails = self.store_fails();
            match self.store.remove(&entry).filter(|_| !fails) {
                None => self.scheduler.entry_lost(entry),
                Some(state) => {
                    let success = self.backend.load(seq, &state);
                    if self.scheduler.finish_swap_in(key, entry, success) {
                        self.store.insert(entry, state);
                    }
                }
            }
        }
        self.see_to_memory();
    }
}
