//! Who is taken up next, and with how much of its prompt computed already.
//!
//! Room is not set aside for all that a request may ever need, since few need it: it is for its
//! tokens and for as many more as requests have generated of late. Who outgrows that takes what is
//! free, and when nothing is, the least important sequence gives way (see [`room`](super::room)).
//! Each time a request had to give way it is taken up again only with room for four times as many
//! more, so it does not happen to it for ever.

use super::cache::{Entry, Holder, Place};
use super::running::{Running, Wait};
use super::words::{
    CellQuota, EntryId, LogitsKind, MemoryOp, Priority, Request, RequestId, SeqId, length,
};
use super::{Scheduler, Time};
use std::collections::BTreeSet;

/// Fewer shared tokens than this are computed again: that is as quick.
const LEAST_SHARED: u32 = 4;
/// How many more tokens make it worth to wait for another one to read them, or to fetch them.
const WORTH_WAITING: u32 = 32;
/// Room for generated tokens: at least this, and what is taken to be usual before anything is known.
const HEADROOM: (u32, f64) = (32, 128.0);
/// Weight of the newest request in the mean of generated tokens.
const NEWEST: f64 = 0.05;

/// How many tokens a request generates as a rule.
#[derive(Clone, Debug)]
pub(super) struct Usual(f64);

impl Default for Usual {
    fn default() -> Self {
        Self(HEADROOM.1)
    }
}

impl Usual {
    /// A request generated so many.
    pub fn observe(&mut self, generated: u32) {
        self.0 += NEWEST * (f64::from(generated) - self.0);
    }

    fn tokens(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = self.0.ceil() as u32;
        usual.max(HEADROOM.0)
    }
}

/// Where a request's first tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Fresh,
    /// An entry that nobody else needs becomes the sequence.
    TakeOver {
        entry: EntryId,
        length: u32,
    },
    /// The same, but under another id, of the kind that is needed.
    Move {
        entry: EntryId,
        length: u32,
    },
    Share {
        entry: Option<EntryId>,
        from: SeqId,
        length: u32,
    },
    Follow {
        leader: RequestId,
        length: u32,
    },
    Fetch {
        entry: EntryId,
        length: u32,
    },
}

impl Start {
    /// How many tokens are there already, or will be.
    pub(super) fn length(self) -> u32 {
        match self {
            Self::Fresh => 0,
            Self::TakeOver { length, .. }
            | Self::Move { length, .. }
            | Self::Share { length, .. }
            | Self::Follow { length, .. }
            | Self::Fetch { length, .. } => length,
        }
    }
}

impl Scheduler {
    /// Whose turn it is: who had it when there was no room, unless a more urgent one came.
    pub(super) fn next(&self) -> Option<&Request> {
        let first = self.queue.first(|request| self.keeps_to_share(request))?;
        let held = self.turn.and_then(|key| self.queue.get(key));
        let held = held.filter(|held| self.keeps_to_share(held));
        Some(
            held.filter(|held| held.priority >= first.priority)
                .unwrap_or(first),
        )
    }

    /// Takes up as many as there is room for. Whose turn it is, is not overtaken: so a large one is
    /// delayed by those before it and by nobody else.
    pub(super) fn admit(&mut self, now: Time) -> Vec<RequestId> {
        let mut admitted = Vec::new();
        while let Some(next) = self.next() {
            let (key, priority, rows) = (next.id, next.priority, next.logits);
            let start = self.start(next, u64::MAX);
            let reserved = self.reserve(next);
            let fits = self.running.is_empty() || self.fits(next, start, reserved);
            self.turn = Some(key);
            if !fits {
                if self.preempt_below(priority) {
                    continue;
                }
                break;
            }
            let Some((seq, start)) = self.lend(start, rows) else {
                if self.preempt_below(priority) {
                    continue;
                }
                break;
            };
            let Some(request) = self.queue.admit(key, start.length()) else {
                break;
            };
            self.turn = None;
            self.pace.admitted(now);
            admitted.push(key);
            self.begin(request, seq, start, reserved);
        }
        if self.queue.is_empty() {
            self.pace.rest();
        }
        admitted
    }

    /// Whether its group keeps to its share of the cells if it runs. One alone always does, since what
    /// needs more is not taken.
    fn keeps_to_share(&self, request: &Request) -> bool {
        let Some(CellQuota { group, cells }) = request.quota else {
            return true;
        };
        let own = self.running.iter().filter(|running| running.is_of(group));
        let held: u32 = own.map(|r| r.reserved.max(length(r.tokens()))).sum();
        held == 0 || held.saturating_add(self.reserve(request)) <= cells
    }

    /// Where groups have outgrown their shares, the least important of their sequences give way.
    pub(super) fn keep_shares(&mut self) {
        let shares = self.running.iter().filter_map(|r| r.request.quota);
        let groups: BTreeSet<_> = shares.map(|share| share.group).collect();
        for group in groups {
            loop {
                let own = self.running.iter().filter(|running| running.is_of(group));
                let held: u32 = own.clone().map(|r| length(r.tokens())).sum();
                let shares = own.clone().filter_map(|r| r.request.quota);
                let cells = shares.map(|share| share.cells).max().unwrap_or(0);
                let outgrown = own.count() > 1 && held > cells;
                if !outgrown || !self.preempt_among(|running| running.is_of(group)) {
                    break;
                }
            }
        }
    }

    /// For how many tokens there has to be room.
    fn reserve(&self, request: &Request) -> u32 {
        let times = 2 * request.progress.preempted.min(8);
        let headroom = u64::from(self.usual.tokens()) << times;
        let more = u32::try_from(headroom).unwrap_or(u32::MAX);
        length(&request.tokens)
            .saturating_add(more)
            .min(request.cells_needed().max(length(&request.tokens)))
    }

    fn fits(&self, request: &Request, start: Start, reserved: u32) -> bool {
        let promised: u32 = self.running.iter().map(Running::promised).sum();
        let own = match start {
            Start::Fresh | Start::Fetch { .. } => reserved,
            // The leader's promise is for both.
            Start::Follow { length, .. } => reserved - length,
            Start::TakeOver { entry, length } | Start::Move { entry, length } => {
                let seq = self.cache.get(entry).and_then(|entry| entry.seq());
                let taken = seq.map_or(0, |seq| self.cells.unpinned(seq, length));
                reserved - length + taken
            }
            Start::Share { from, length, .. } => {
                reserved - length + self.cells.unpinned(from, length)
            }
        };
        let needed = u64::from(self.cells.pinned()) + u64::from(promised) + u64::from(own);
        debug_assert!(length(&request.tokens) <= reserved);
        needed <= u64::from(self.limits.cells)
    }

    /// The longest beginning that there is of a request, or will be soon. It is never all of it: the
    /// last token is always computed, since what is predicted after it is not kept. It follows only
    /// those that were admitted before `admission`, so no two wait for each other.
    pub(super) fn start(&self, request: &Request, admission: u64) -> Start {
        if !self.limits.prefix_cache {
            return Start::Fresh;
        }
        let whole = !self.limits.can_truncate;
        let most = length(&request.tokens) - 1;
        let own = request.continues.as_ref();
        let (mut best, mut worth) = (Start::Fresh, LEAST_SHARED);
        let mut leader = None;
        // What is in the cells comes first, and of that what shares more; of equals the first one that is as good.
        for (holder, shared) in self.cache.nearest(request.scope, &request.tokens) {
            let shared = shared.min(most);
            match holder {
                Holder::Entry(id) => {
                    let Some(entry) = self.cache.get(id) else {
                        continue;
                    };
                    let all = shared == entry.length();
                    if whole && !all {
                        continue;
                    }
                    match entry.place {
                        Place::Spilled(_) => {
                            let more = (shared + 1).saturating_sub(worth);
                            if more > WORTH_WAITING && self.fetching_pays(id, more) {
                                (best, worth) = (
                                    Start::Fetch {
                                        entry: id,
                                        length: shared,
                                    },
                                    shared - WORTH_WAITING + 1,
                                );
                            }
                        }
                        Place::Cells(_) if all && !entry.is_claimed_beside(own) => {
                            // What is its own is taken over however short it is.
                            if shared >= worth || (best == Start::Fresh && entry.is_claimed()) {
                                let length = shared;
                                (best, worth) =
                                    (Start::TakeOver { entry: id, length }, worth.max(shared + 1));
                            }
                        }
                        Place::Cells(from) => {
                            if shared >= worth {
                                let start = Start::Share {
                                    entry: Some(id),
                                    from,
                                    length: shared,
                                };
                                (best, worth) = (start, shared + 1);
                            }
                        }
                    }
                }
                Holder::Running(key) => {
                    let Some(running) = self.running.iter().find(|r| r.key() == key) else {
                        continue;
                    };
                    if whole || running.admission >= admission {
                        continue;
                    }
                    let there = shared.min(running.computed);
                    if there >= worth {
                        let start = Start::Share {
                            entry: None,
                            from: running.seq,
                            length: there,
                        };
                        (best, worth) = (start, there + 1);
                    }
                    let soon = running.computed < shared
                        && running.request.priority >= request.priority
                        && leader.is_none_or(|(_, length)| length < shared);
                    if soon {
                        leader = Some((key, shared));
                    }
                }
            }
        }
        match leader {
            Some((leader, length)) if length >= worth + WORTH_WAITING => {
                Start::Follow { leader, length }
            }
            _ => best,
        }
    }

    /// An id for a sequence that starts like that, if not as many run as may. What is in the way makes
    /// room for it, but what it starts from only at last.
    fn lend(&mut self, start: Start, rows: LogitsKind) -> Option<(SeqId, Start)> {
        if self.running.len() >= usize::from(self.limits.running()) {
            return None;
        }
        let source = match start {
            Start::TakeOver { entry, length } => {
                let seq = self.cache.get(entry)?.seq()?;
                return match self.better_id(seq, rows, entry) {
                    Some(other) => Some((other, Start::Move { entry, length })),
                    None => self.may_have(seq, rows).then_some((seq, start)),
                };
            }
            Start::Share { entry, .. } => entry,
            _ => None,
        };
        if let Some(seq) = self.lend_id(rows, source) {
            return Some((seq, start));
        }
        let (entry, length) = match start {
            Start::Share {
                entry: Some(entry),
                length,
                ..
            } => (entry, length),
            _ => return None,
        };
        let seq = self.cache.get(entry)?.seq()?;
        let taken = self.may_have(seq, rows);
        taken.then_some((seq, Start::TakeOver { entry, length }))
    }

    fn begin(&mut self, request: Request, seq: SeqId, start: Start, reserved: u32) {
        self.admissions += 1;
        self.cache.begin(request.scope, &request.tokens, request.id);
        let mut running = request.run(seq, reserved, self.admissions);
        match start {
            Start::Fresh => {
                self.cells.pin(seq);
                running.starts_at(0);
            }
            Start::TakeOver { entry, length } => {
                running.request.continues = None;
                let claimed = self.cache.get(entry).is_some_and(Entry::is_claimed);
                if claimed && self.limits.swap {
                    self.spill_copy(entry, seq);
                } else {
                    self.cache.remove(entry);
                }
                self.cells.pin(seq);
                self.truncate(seq, length);
                running.starts_at(length);
            }
            Start::Move { entry, length } => {
                running.request.continues = None;
                self.cells.pin(seq);
                if let Some(from) = self.cache.get(entry).and_then(Entry::seq) {
                    self.share(from, seq, length);
                }
                running.starts_at(length);
                if self.cache.get(entry).is_some_and(Entry::is_claimed) {
                    self.cache.touch(entry);
                } else {
                    self.drop_entry(entry);
                }
            }
            Start::Share {
                entry,
                from,
                length,
            } => {
                self.cells.pin(seq);
                self.share(from, seq, length);
                running.starts_at(length);
                if let Some(entry) = entry {
                    self.cache.touch(entry);
                }
            }
            Start::Follow { leader, length } => {
                self.cells.pin(seq);
                running.wait = Wait::Follows { leader, length };
            }
            Start::Fetch { entry, length } => {
                self.cells.pin(seq);
                let key = running.key();
                running.wait = Wait::Fetches { entry, length };
                self.memory.push(MemoryOp::SwapIn {
                    entry,
                    request: key,
                });
            }
        }
        self.running.push(running);
    }

    /// Whether others wait for what a sequence reads.
    pub(super) fn is_followed(&self, key: RequestId) -> bool {
        let follows = |wait| matches!(wait, Wait::Follows { leader, .. } if leader == key);
        self.running.iter().any(|running| follows(running.wait))
    }

    /// Lets those go on whose leader has read what they wait for, and finds another way for those
    /// whose leader is gone.
    pub(super) fn join(&mut self) {
        for index in 0..self.running.len() {
            let running = &self.running[index];
            let Wait::Follows { leader, length } = running.wait else {
                continue;
            };
            let (seq, admission) = (running.seq, running.admission);
            let leading = self.running.iter().find(|r| r.key() == leader);
            let start = match leading {
                Some(leading) if leading.computed < length => continue,
                Some(leading) => Start::Share {
                    entry: None,
                    from: leading.seq,
                    length,
                },
                None => self.start(&running.request, admission),
            };
            let from = match start {
                Start::TakeOver { entry, length } | Start::Move { entry, length } => {
                    let seq = self.cache.get(entry).and_then(|entry| entry.seq());
                    seq.map(|seq| (seq, length))
                }
                Start::Share { from, length, .. } => Some((from, length)),
                Start::Fresh => None,
                Start::Follow { leader, length } => {
                    self.running[index].wait = Wait::Follows { leader, length };
                    continue;
                }
                Start::Fetch { entry, length } => {
                    let running = &mut self.running[index];
                    let key = running.key();
                    running.wait = Wait::Fetches { entry, length };
                    self.memory.push(MemoryOp::SwapIn {
                        entry,
                        request: key,
                    });
                    continue;
                }
            };
            if let Some((from, length)) = from {
                self.share(from, seq, length);
            }
            let length = from.map_or(0, |(_, length)| length);
            self.running[index].starts_at(length);
        }
    }

    fn preempt_below(&mut self, priority: Priority) -> bool {
        let lower = |running: &Running| running.request.priority < priority;
        self.preempt_among(lower)
    }
}
