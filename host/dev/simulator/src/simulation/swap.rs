//! The memory operations of a simulation, and its swap store.

use super::Simulation;
use corral_scheduler::{EntryId, MemoryOp, RequestId};

/// A state that a request waits for.
#[derive(Debug)]
pub(super) struct PendingSwapIn {
    entry: EntryId,
    request: RequestId,
    /// Plans until it is at hand.
    delay: u64,
}

impl Simulation {
    /// Applies the queued memory operations until none is left.
    pub(super) fn run_memory_ops(&mut self) {
        loop {
            let ops = self.scheduler.take_memory_ops();
            if ops.is_empty() {
                return;
            }
            self.apply_memory_ops(&ops);
        }
    }

    pub(super) fn apply_memory_ops(&mut self, ops: &[MemoryOp]) {
        for op in ops {
            match *op {
                MemoryOp::Clear(seq) => self.backend.clear(seq),
                MemoryOp::Share { from, to, length } => self.backend.share(from, to, length),
                MemoryOp::Truncate { seq, length } => self.backend.truncate(seq, length),
                MemoryOp::SwapOut { entry, seq } => {
                    let saved = match self.store_fails() {
                        true => None,
                        false => self.backend.save(seq, usize::MAX).ok(),
                    };
                    match saved {
                        Some(state) => {
                            self.copy_to_disk(entry, &state);
                            self.store.insert(entry, state);
                        }
                        None => self.scheduler.entry_lost(entry),
                    }
                }
                MemoryOp::SwapIn { entry, request } => {
                    let delay = self.stored % 3;
                    self.swap_ins.push(PendingSwapIn {
                        entry,
                        request,
                        delay,
                    });
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

    /// Keeps every other offloaded prefix on disk, too.
    fn copy_to_disk(&mut self, entry: EntryId, state: &[u8]) {
        if !self.stored.is_multiple_of(2) || !self.scheduler.is_offloaded_prefix(entry) {
            return;
        }
        let Some((scope, tokens, order)) = self.scheduler.entry_text(entry) else {
            return;
        };
        if !self.scheduler.has_durable(scope, tokens) {
            let tokens = tokens.to_vec();
            let id = self.scheduler.import_durable(scope, tokens, order);
            self.scheduler.drop_redundant(id);
            self.store.insert(id, state.to_vec());
        }
    }

    fn store_fails(&mut self) -> bool {
        self.stored += 1;
        self.store_fails
            .is_some_and(|every| self.stored.is_multiple_of(every))
    }

    /// Swaps in the states that are at hand.
    pub(super) fn swap_in(&mut self) {
        for mut pending in std::mem::take(&mut self.swap_ins) {
            if pending.delay > 0 {
                pending.delay -= 1;
                self.swap_ins.push(pending);
                continue;
            }
            let (entry, request) = (pending.entry, pending.request);
            let Some(seq) = self.scheduler.begin_swap_in(request, entry) else {
                self.run_memory_ops();
                continue;
            };
            self.run_memory_ops();
            let fails = self.store_fails();
            match self.store.remove(&entry).filter(|_| !fails) {
                None => self.scheduler.entry_lost(entry),
                Some(state) => {
                    let success = self.backend.load(seq, &state);
                    if self.scheduler.finish_swap_in(request, entry, success) {
                        self.store.insert(entry, state);
                    }
                }
            }
        }
        self.run_memory_ops();
    }
}
