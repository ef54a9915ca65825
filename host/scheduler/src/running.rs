//! Requests that run: each holds a sequence id, and cells that were reserved at its admission.
//!
//! Keeps the progress of each, and the order of preemption. It does not decide which requests start, compute or lose their
//! cells.

use crate::Token;
use crate::draft_acceptance::RequestDrafts;
use crate::request::{AdapterId, QuotaGroup, Request, RequestId, RequestProgress, length};
use crate::step::{EntryId, Row, SeqId};
use crate::strikes::Strikes;
use std::cell::Cell;
use std::collections::BTreeSet;

/// Known tokens that a decoding request may have beside the first: forced by a grammar, or appended by a guest. With
/// more of them it is in prefill.
const MAX_KNOWN_TOKENS: u32 = 8;

/// What a running request waits for before it gets rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    Ready,
    /// `leader` to compute `length` tokens of the prefix that both share.
    Prefix { leader: RequestId, length: u32 },
    /// The first `length` tokens of a swapped-out entry.
    SwapIn { entry: EntryId, length: u32 },
    /// The external sampler to pick the next token.
    Sampler,
}

/// A running request. Its tokens are in its [`Request`].
#[derive(Clone, Debug)]
pub(crate) struct RunningRequest {
    pub request: Request,
    pub seq: SeqId,
    /// Tokens whose cells are filled.
    pub computed: u32,
    /// Tokens that it is listed with in the prefix tree.
    pub listed: u32,
    /// Cells reserved for it at its admission. Those that it does not hold yet are *promised*; held and promised cells
    /// are *committed*.
    pub reserved: u32,
    pub wait: Wait,
    /// Rises with each admission.
    pub admission_number: u64,
    pub strikes: Strikes,
    /// The furthest position at which it failed and that it has not passed since, in a memory that can't truncate. It
    /// is alone in the step that tries again.
    pub failed_at: Option<u32>,
    pub drafts: RequestDrafts,
    /// Whether an external sampler picks its tokens.
    pub has_external_sampler: bool,
    /// Whether its cells hold the only copy of an offloaded prefix.
    pub holds_offloaded: bool,
    /// Hits of the entry that its sequence replaces, with its own.
    pub entry_hits: u64,
}

impl RunningRequest {
    /// Starts a request. Nothing of it is computed.
    pub fn new(request: Request, seq: SeqId, reserved: u32, admission_number: u64) -> Self {
        Self {
            listed: length(&request.tokens),
            request,
            seq,
            computed: 0,
            reserved,
            wait: Wait::Ready,
            admission_number,
            strikes: Strikes::default(),
            failed_at: None,
            drafts: RequestDrafts::default(),
            has_external_sampler: false,
            holds_offloaded: false,
            entry_hits: 0,
        }
    }

    /// Its id.
    pub fn id(&self) -> RequestId {
        self.request.id
    }

    /// Its adapter.
    pub fn adapter(&self) -> AdapterId {
        self.request.scope.adapter()
    }

    /// Whether it belongs to a quota group.
    pub fn is_in_group(&self, group: QuotaGroup) -> bool {
        self.request.quota.is_some_and(|quota| quota.group == group)
    }

    /// Its prompt and generated tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.request.tokens
    }

    /// Tokens that are not computed.
    pub fn pending(&self) -> u32 {
        length(self.tokens()) - self.computed
    }

    /// Whether it can have rows.
    pub fn is_ready(&self) -> bool {
        self.wait == Wait::Ready
    }

    /// Whether its caller or an external sampler picks its next token.
    pub fn is_sampled_externally(&self) -> bool {
        self.request.is_next_token() || self.has_external_sampler
    }

    /// Whether it is past its prompt, and at most 1 + [`MAX_KNOWN_TOKENS`] tokens are left to compute. The prompt of a
    /// next-token request is taken to end where it was computed to.
    pub fn is_decoding(&self) -> bool {
        let past_prompt = match self.request.is_next_token() {
            true => self.computed > 0,
            false => self.request.progress.generated > 0,
        };
        self.is_ready() && past_prompt && self.pending() <= 1 + MAX_KNOWN_TOKENS
    }

    /// Whether it has a prompt to compute; or generated tokens, after a preemption.
    pub fn is_prefilling(&self) -> bool {
        self.is_ready() && !self.is_decoding()
    }

    /// Tokens that it can use of the prefill budget: all pending ones but the one of a decode row.
    pub fn prefill_tokens(&self) -> u32 {
        match self.is_ready() {
            true => self.pending() - u32::from(self.is_decoding()),
            false => 0,
        }
    }

    /// Cells reserved for it that it does not hold yet.
    pub fn promised(&self) -> u32 {
        let shared = match self.wait {
            Wait::Prefix { length, .. } => length,
            Wait::Ready | Wait::SwapIn { .. } | Wait::Sampler => 0,
        };
        let target = self.reserved.max(length(self.tokens()));
        target.saturating_sub(self.computed.max(shared))
    }

    /// Records that its tokens are computed up to `to`.
    pub fn advance(&mut self, to: u32) {
        self.computed = to;
        // Only new progress clears its failures.
        if self.failed_at.is_none_or(|failed_at| to > failed_at) {
            self.failed_at = None;
            self.strikes.reset();
        }
    }

    /// The order of preemption: the least goes first.
    pub fn importance(&self) -> impl Ord + use<> {
        let request = &self.request;
        let latest = std::cmp::Reverse((request.arrived_at, request.id));
        (request.priority, latest)
    }

    /// Its row of the next `tokens` tokens.
    pub fn row(&self, tokens: u32) -> Row {
        Row {
            request: self.id(),
            seq: self.seq,
            from: self.computed,
            to: self.computed + tokens,
            output: tokens == self.pending(),
            drafts: 0,
        }
    }

    /// Lets it continue after the first `length` tokens, which are in its cells.
    pub fn start_at(&mut self, length: u32) {
        self.wait = Wait::Ready;
        self.computed = length;
        self.request.continued = None;
        let progress = &mut self.request.progress;
        progress.recomputed += progress.reached.saturating_sub(length);
        progress.cached += length.saturating_sub(progress.reached);
        progress.reached = progress.reached.max(length);
    }

    /// Its progress until now.
    pub fn progress(&self) -> RequestProgress {
        let mut progress = self.request.progress.clone();
        if matches!(self.wait, Wait::Ready | Wait::Sampler) {
            // These tokens are not recomputed yet.
            progress.recomputed -= progress.reached.saturating_sub(self.computed);
        }
        progress.reached = progress.reached.max(self.computed);
        progress
    }

    /// Records its progress before its cells are lost.
    pub fn save_progress(&mut self) {
        self.request.progress = self.progress();
    }
}

/// Numbers of decoding requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodingCount {
    /// Of an adapter.
    pub own: u32,
    /// Of the other adapters.
    pub others: u32,
}

/// All running requests, in order of admission except after a failed step.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningRequests {
    requests: Vec<RunningRequest>,
    /// The index that was last found. A search begins there, since most callers look for one request after the other: a
    /// search for each of 512 rows from the start takes 60 µs.
    last_found: Cell<usize>,
}

pub(crate) fn count(requests: impl Iterator) -> u32 {
    u32::try_from(requests.count()).unwrap_or(u32::MAX)
}

impl RunningRequests {
    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, RunningRequest> {
        self.requests.iter()
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, RunningRequest> {
        self.requests.iter_mut()
    }

    /// Number of running requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The index of a request.
    fn index(&self, id: RequestId) -> Option<usize> {
        let last = self.last_found.get().min(self.len());
        let (before, rest) = self.requests.split_at(last);
        let is_it = |running: &RunningRequest| running.id() == id;
        let index = match rest.iter().position(is_it) {
            Some(index) => last + index,
            None => before.iter().position(is_it)?,
        };
        self.last_found.set(index);
        Some(index)
    }

    /// One of them.
    pub fn get(&self, id: RequestId) -> Option<&RunningRequest> {
        self.index(id).map(|index| &self.requests[index])
    }

    /// One of them.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut RunningRequest> {
        self.index(id).map(|index| &mut self.requests[index])
    }

    /// Adds one.
    pub fn push(&mut self, running: RunningRequest) {
        self.requests.push(running);
    }

    /// Removes one.
    pub fn remove(&mut self, id: RequestId) -> Option<RunningRequest> {
        self.index(id).map(|index| self.requests.remove(index))
    }

    /// Moves one to the end, where failure handling tries it last.
    pub fn move_to_end(&mut self, id: RequestId) {
        if let Some(running) = self.remove(id) {
            self.push(running);
        }
    }

    /// Moves the requests of `rows` to the end.
    pub fn move_rows_to_end(&mut self, rows: &[Row]) {
        self.requests
            .sort_by_key(|running| rows.iter().any(|row| row.request == running.id()));
    }

    /// Whether any can have rows.
    pub fn any_ready(&self) -> bool {
        self.iter().any(RunningRequest::is_ready)
    }

    /// Whether some can have rows, and each of these is sampled externally.
    pub fn all_ready_sampled_externally(&self) -> bool {
        let mut ready = self.iter().filter(|running| running.is_ready()).peekable();
        ready.peek().is_some() && ready.all(RunningRequest::is_sampled_externally)
    }

    /// Number of decoding requests.
    pub fn decoding(&self) -> u32 {
        count(self.iter().filter(|running| running.is_decoding()))
    }

    /// Numbers of decoding requests of an adapter, and of the others.
    pub fn decoding_by_adapter(&self, adapter: AdapterId) -> DecodingCount {
        let mut counted = DecodingCount::default();
        for running in self.iter() {
            if running.is_decoding() {
                match running.adapter() == adapter {
                    true => counted.own += 1,
                    false => counted.others += 1,
                }
            }
        }
        counted
    }

    /// Requests whose next token a long step delays: those that decode, or for which an external sampler that is not
    /// late picks a token.
    pub fn delayed_by_long_step(&self) -> impl Iterator<Item = &RunningRequest> {
        self.iter().filter(|running| {
            let awaited = running.wait == Wait::Sampler && !running.request.progress.late;
            running.is_decoding() || awaited
        })
    }

    /// Cells that are promised to all of them.
    pub fn promised(&self) -> u32 {
        self.iter().map(RunningRequest::promised).sum()
    }

    /// Number of adapters in use.
    pub fn adapters(&self) -> u8 {
        let adapters: BTreeSet<_> = self.iter().map(RunningRequest::adapter).collect();
        u8::try_from(adapters.len()).unwrap_or(u8::MAX)
    }

    /// Whether others wait for a prefix of this one.
    pub fn is_followed(&self, id: RequestId) -> bool {
        self.iter()
            .any(|running| matches!(running.wait, Wait::Prefix { leader, .. } if leader == id))
    }

    /// Whether any waits for an entry to be swapped in.
    pub fn is_entry_awaited(&self, id: EntryId) -> bool {
        self.iter()
            .any(|running| matches!(running.wait, Wait::SwapIn { entry, .. } if entry == id))
    }

    /// Lets the requests that wait for an entry compute its tokens themselves.
    pub fn stop_awaiting(&mut self, id: EntryId) {
        for running in self.iter_mut() {
            if matches!(running.wait, Wait::SwapIn { entry, .. } if entry == id) {
                running.start_at(0);
            }
        }
    }

    /// Lets requests that wait for at most `computed` tokens of an entry follow `leader`, which has them.
    pub fn follow_instead(&mut self, id: EntryId, leader: RequestId, computed: u32) {
        for running in self.iter_mut() {
            match running.wait {
                Wait::SwapIn { entry, length } if entry == id && length <= computed => {
                    running.wait = Wait::Prefix { leader, length };
                }
                _ => {}
            }
        }
    }

    /// The least important of those that pass `filter`.
    pub fn least_important(&self, filter: impl Fn(&RunningRequest) -> bool) -> Option<RequestId> {
        let candidates = self.iter().filter(|running| filter(running));
        let least = candidates.min_by_key(|running| running.importance());
        least.map(RunningRequest::id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Priority;
    use crate::tests::request;

    fn running(id: u64, priority: u8, prompt: u32) -> RunningRequest {
        let request = Request {
            priority: Priority(priority),
            ..request(id, prompt, 20)
        };
        RunningRequest::new(request, SeqId(0), prompt + 20, id)
    }

    #[test]
    fn latest_of_lowest_priority_is_least_important() {
        let mut all = RunningRequests::default();
        for (id, priority) in [(1, 1), (2, 0), (3, 0)] {
            all.push(running(id, priority, 5));
        }
        assert_eq!(all.least_important(|_| true), Some(RequestId(3)));
        let first = all.least_important(|one| one.id() == RequestId(1));
        assert_eq!(first, Some(RequestId(1)));
        assert_eq!(all.least_important(|_| false), None);
    }

    #[test]
    fn requests_are_found_in_any_order() {
        let mut all = RunningRequests::default();
        (0..4).for_each(|id| all.push(running(id, 0, 5)));
        let find = |all: &RunningRequests, ids: &[u64]| {
            for &id in ids {
                assert_eq!(all.get(RequestId(id)).map(|one| one.id().0), Some(id));
            }
        };
        find(&all, &[0, 1, 2, 3, 3, 0, 2, 1, 3]);
        assert!(all.get(RequestId(9)).is_none());
        // The one that was last found is gone, and the list is shorter.
        assert!(all.remove(RequestId(3)).is_some());
        assert!(all.get(RequestId(3)).is_none());
        find(&all, &[2, 0]);
        all.move_to_end(RequestId(0));
        find(&all, &[1, 0, 2]);
    }

    #[test]
    fn recomputed_tokens_count_once_computed() {
        let mut one = running(1, 0, 10);
        one.start_at(0);
        one.advance(8);
        one.save_progress();
        one.start_at(3);
        assert_eq!((one.progress().recomputed, one.progress().cached), (0, 0));
        one.advance(7);
        assert_eq!(one.progress().recomputed, 4);
        one.advance(10);
        assert_eq!((one.progress().recomputed, one.progress().reached), (5, 10));
    }

    #[test]
    fn promise_shrinks_with_computed_and_shared_tokens() {
        let mut one = running(1, 0, 10);
        assert_eq!(one.promised(), 30);
        let leader = RequestId(2);
        one.wait = Wait::Prefix { leader, length: 8 };
        assert_eq!(one.promised(), 22);
        one.start_at(9);
        assert_eq!(one.promised(), 21);
    }
}
