//! Decides whether the next waiting request starts, and which prefix it reuses.
//!
//! Room is not reserved for all tokens that a request may generate, since few generate that many: it is for its own
//! tokens and as many more as requests [generate on average](crate::output_length). One that outgrows its reservation
//! takes free cells; if none are left, the least important request is [preempted](crate::preemption); each preemption
//! multiplies the extra room by four, so that no request is preempted for ever.

use crate::config::SchedulerConfig;
use crate::cost_model::CostModel;
use crate::kv_cache::KvCache;
use crate::output_length::OutputLength;
use crate::prefix_cache::{EntryState, PrefixHolder};
use crate::request::{CellQuota, LogitsKind, Request, RequestId, length};
use crate::running::RunningRequests;
use crate::step::{EntryId, SeqId};

/// A shorter shared prefix is computed again: that is as fast.
const MIN_SHARED: u32 = 4;
/// A prefix to wait for must save this many tokens more than the best one at hand.
const MIN_SHARED_GAIN: u32 = 32;
/// A shorter entry is never swapped in.
pub(crate) const MIN_SWAPPED_IN: u32 = MIN_SHARED + MIN_SHARED_GAIN;
/// The extra room doubles at most this often; a preemption doubles it twice.
const MAX_ROOM_DOUBLINGS: u32 = 16;

/// Where a request's first tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixSource {
    /// It computes all its tokens.
    None,
    /// It takes over the id and the cells of an entry that no other request needs.
    TakeOver { entry: EntryId, length: u32 },
    /// It takes over an entry's cells, under an id of the other kind.
    Move { entry: EntryId, length: u32 },
    /// It shares the cells of a running request, or of `entry`.
    Share {
        entry: Option<EntryId>,
        from: SeqId,
        length: u32,
    },
    /// It waits for another request to compute the prefix.
    Follow { leader: RequestId, length: u32 },
    /// It waits for an entry to be swapped in.
    SwapIn { entry: EntryId, length: u32 },
}

impl PrefixSource {
    /// Tokens that the source provides, now or soon.
    pub fn length(self) -> u32 {
        match self {
            Self::None => 0,
            Self::TakeOver { length, .. }
            | Self::Move { length, .. }
            | Self::Share { length, .. }
            | Self::Follow { length, .. }
            | Self::SwapIn { length, .. } => length,
        }
    }
}

/// The state that admission decides by.
pub(crate) struct Admission<'a> {
    pub config: &'a SchedulerConfig,
    pub running: &'a RunningRequests,
    pub kv: &'a KvCache,
    pub costs: &'a CostModel,
    pub output_length: &'a OutputLength,
}

impl Admission<'_> {
    /// Whether a request's quota group stays within its quota with it. A request alone always does, since the queue
    /// refuses larger ones.
    pub fn is_within_quota(&self, request: &Request) -> bool {
        let Some(CellQuota { group, cells }) = request.quota else {
            return true;
        };
        let group = self.running.iter().filter(|one| one.is_in_group(group));
        let held: u32 = group.map(|r| r.reserved.max(length(r.tokens()))).sum();
        held == 0 || held.saturating_add(self.reservation(request)) <= cells
    }

    /// The tokens that there must be room for.
    pub fn reservation(&self, request: &Request) -> u32 {
        let doublings = (2 * request.progress.preempted).min(MAX_ROOM_DOUBLINGS);
        let more = u64::from(self.output_length.expected()) << doublings;
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let tokens = length(&request.tokens);
        tokens
            .saturating_add(more)
            .min(request.cells_needed().max(tokens))
    }

    /// Whether the cells suffice for a request with this source and reservation beside the running ones.
    pub fn fits(&self, source: PrefixSource, reserved: u32) -> bool {
        let (cells, entries) = (&self.kv.cells, &self.kv.entries);
        let own = match source {
            PrefixSource::None | PrefixSource::SwapIn { .. } => reserved,
            // The cells that are promised to the leader are for both.
            PrefixSource::Follow { length, .. } => reserved - length,
            PrefixSource::TakeOver { entry, length } | PrefixSource::Move { entry, length } => {
                let seq = entries.get(entry).and_then(|entry| entry.seq());
                reserved - length + seq.map_or(0, |seq| cells.unpinned(seq, length))
            }
            PrefixSource::Share { from, length, .. } => {
                reserved - length + cells.unpinned(from, length)
            }
        };
        let promised = u64::from(cells.pinned()) + u64::from(self.running.promised());
        promised + u64::from(own) <= u64::from(self.config.cells)
    }

    /// The best source for a request. It never provides the last token, since the logits after it are not kept. It is
    /// a `Follow` only of a request with a lower `admission_number`, so that no two requests wait for each other.
    pub fn source(&self, request: &Request, admission_number: u64) -> PrefixSource {
        if !self.config.prefix_cache {
            return PrefixSource::None;
        }
        let whole_only = !self.config.can_truncate;
        let most = length(&request.tokens) - 1;
        let own = request.continued.as_ref();
        // Candidates in the cells come first, of these the longest prefix. `min_length` is the length that beats
        // `best`.
        let (mut best, mut min_length) = (PrefixSource::None, MIN_SHARED);
        let mut leader = None;
        for (holder, shared) in self.kv.entries.nearest(request.scope, &request.tokens) {
            let length = shared.min(most);
            match holder {
                PrefixHolder::Entry(id) => {
                    let Some(entry) = self.kv.entries.get(id) else {
                        continue;
                    };
                    let whole = length == entry.length();
                    if whole_only && !whole {
                        continue;
                    }
                    match entry.state {
                        EntryState::SwappedOut(_) => {
                            let more = (length + 1).saturating_sub(min_length);
                            if more > MIN_SHARED_GAIN && self.kv.swap_in_pays(self.costs, id, more)
                            {
                                best = PrefixSource::SwapIn { entry: id, length };
                                min_length = length - MIN_SHARED_GAIN + 1;
                            }
                        }
                        EntryState::Resident(_) if whole && !entry.is_retained_by_others(own) => {
                            // The request's own sequence is taken over however short it is.
                            let is_own = best == PrefixSource::None && entry.is_retained();
                            if length >= min_length || is_own {
                                best = PrefixSource::TakeOver { entry: id, length };
                                min_length = min_length.max(length + 1);
                            }
                        }
                        EntryState::Resident(from) => {
                            if length >= min_length {
                                best = PrefixSource::Share {
                                    entry: Some(id),
                                    from,
                                    length,
                                };
                                min_length = length + 1;
                            }
                        }
                    }
                }
                PrefixHolder::Running(id) => {
                    let Some(running) = self.running.get(id) else {
                        continue;
                    };
                    if whole_only || running.admission_number >= admission_number {
                        continue;
                    }
                    let computed = length.min(running.computed);
                    if computed >= min_length {
                        best = PrefixSource::Share {
                            entry: None,
                            from: running.seq,
                            length: computed,
                        };
                        min_length = computed + 1;
                    }
                    let follows = running.computed < length
                        && running.request.priority >= request.priority
                        && leader.is_none_or(|(_, longest)| longest < length);
                    if follows {
                        leader = Some((id, length));
                    }
                }
            }
        }
        match leader {
            Some((leader, length)) if length >= min_length + MIN_SHARED_GAIN => {
                PrefixSource::Follow { leader, length }
            }
            _ => best,
        }
    }
}

impl KvCache {
    /// Takes an id, and adapts the source to it. The entry of the source is evicted last.
    pub fn take_id_for(
        &mut self,
        source: PrefixSource,
        logits: LogitsKind,
    ) -> Option<(SeqId, PrefixSource)> {
        let spared = match source {
            PrefixSource::TakeOver { entry, length } => {
                let seq = self.entries.get(entry)?.seq()?;
                return match self.take_preferred_id(seq, logits, entry) {
                    Some(other) => Some((other, PrefixSource::Move { entry, length })),
                    None => self.may_use(seq, logits).then_some((seq, source)),
                };
            }
            PrefixSource::Share { entry, .. } => entry,
            _ => None,
        };
        if let Some(seq) = self.take_id(logits, spared) {
            return Some((seq, source));
        }
        let PrefixSource::Share { length, .. } = source else {
            return None;
        };
        let entry = spared?;
        let seq = self.entries.get(entry)?.seq()?;
        self.may_use(seq, logits)
            .then_some((seq, PrefixSource::TakeOver { entry, length }))
    }
}
