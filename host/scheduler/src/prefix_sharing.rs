//! Starts requests on the prefix that they reuse, and lets followers continue once their leader has computed it.

use crate::admission::PrefixSource;
use crate::prefix_cache::{Entry, PrefixCache};
use crate::request::Request;
use crate::running::{RunningRequest, Wait};
use crate::scheduler::Scheduler;
use crate::step::{EntryId, MemoryOp, SeqId};

fn hits(entries: &PrefixCache, entry: EntryId) -> u64 {
    entries.get(entry).map_or(0, |entry| entry.hits)
}

impl Scheduler {
    /// Starts a request with an empty id, or with that of the entry that it takes over.
    pub(crate) fn start(
        &mut self,
        request: Request,
        seq: SeqId,
        source: PrefixSource,
        reserved: u32,
    ) {
        self.admissions += 1;
        let entries = &mut self.kv.entries;
        entries.add_running(request.scope, &request.tokens, request.id);
        let mut running = RunningRequest::new(request, seq, reserved, self.admissions);
        match source {
            PrefixSource::None => {
                self.kv.cells.pin(seq);
                running.start_at(0);
            }
            PrefixSource::TakeOver { entry, length } => {
                running.entry_hits = hits(entries, entry) + 1;
                // Its own retention ends first: a copy is swapped out only if another owner retains the entry.
                running.request.continued = None;
                let retained = self.kv.entries.get(entry).is_some_and(Entry::is_retained);
                if retained && self.config.swap {
                    self.kv.swap_out(entry, seq);
                } else {
                    self.kv.entries.remove(entry);
                }
                self.kv.cells.pin(seq);
                self.kv.truncate(seq, length);
                running.start_at(length);
            }
            PrefixSource::Move { entry, length } => {
                running.request.continued = None;
                running.entry_hits = hits(entries, entry) + 1;
                self.kv.cells.pin(seq);
                if let Some(from) = self.kv.entries.get(entry).and_then(Entry::seq) {
                    self.kv.share(from, seq, length);
                }
                running.start_at(length);
                if self.kv.entries.get(entry).is_some_and(Entry::is_retained) {
                    self.kv.entries.touch(entry);
                } else {
                    self.kv.drop_entry(entry);
                }
            }
            PrefixSource::Share {
                entry,
                from,
                length,
            } => {
                self.kv.cells.pin(seq);
                self.kv.share(from, seq, length);
                running.start_at(length);
                if let Some(entry) = entry {
                    self.kv.entries.touch(entry);
                }
            }
            PrefixSource::Follow { leader, length } => {
                self.kv.cells.pin(seq);
                running.wait = Wait::Prefix { leader, length };
            }
            PrefixSource::SwapIn { entry, length } => {
                self.kv.cells.pin(seq);
                let request = running.id();
                running.wait = Wait::SwapIn { entry, length };
                self.kv.push_op(MemoryOp::SwapIn { entry, request });
            }
        }
        self.running.push(running);
    }

    /// Lets followers continue whose leader has computed their prefix. A follower whose leader is gone gets another
    /// source.
    pub(crate) fn update_followers(&mut self) {
        let followers = self
            .running
            .iter()
            .filter_map(|running| match running.wait {
                Wait::Prefix { leader, length } => Some((running.id(), leader, length)),
                _ => None,
            });
        let followers: Vec<_> = followers.collect();
        for (id, leader, length) in followers {
            let Some(running) = self.running.get(id) else {
                continue;
            };
            let source = match self.running.get(leader) {
                Some(leader) if leader.computed < length => continue,
                Some(leader) => PrefixSource::Share {
                    entry: None,
                    from: leader.seq,
                    length,
                },
                None => self
                    .admission()
                    .source(&running.request, running.admission_number),
            };
            let seq = running.seq;
            let (wait, shared) = match source {
                PrefixSource::None => (Wait::Ready, None),
                PrefixSource::TakeOver { entry, length } | PrefixSource::Move { entry, length } => {
                    let from = self.kv.entries.get(entry).and_then(Entry::seq);
                    (Wait::Ready, from.map(|from| (from, length)))
                }
                PrefixSource::Share { from, length, .. } => (Wait::Ready, Some((from, length))),
                PrefixSource::Follow { leader, length } => (Wait::Prefix { leader, length }, None),
                PrefixSource::SwapIn { entry, length } => {
                    let request = id;
                    self.kv.push_op(MemoryOp::SwapIn { entry, request });
                    (Wait::SwapIn { entry, length }, None)
                }
            };
            if let Some((from, length)) = shared {
                self.kv.share(from, seq, length);
            }
            if let Some(running) = self.running.get_mut(id) {
                match wait {
                    Wait::Ready => running.start_at(shared.map_or(0, |(_, length)| length)),
                    wait => running.wait = wait,
                }
            }
        }
    }

    /// Removes a request that no longer runs from the prefix tree.
    pub(crate) fn remove_from_prefix_tree(&mut self, running: &RunningRequest) {
        let listed = &running.tokens()[..running.listed as usize];
        let entries = &mut self.kv.entries;
        entries.remove_running(running.request.scope, listed, running.id());
    }
}
