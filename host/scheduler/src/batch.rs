//! Puts the rows of a step together.
//!
//! A step has a row for each decoding request of its adapter, then chunks of prompts within the
//! [prefill budget](crate::prefill_budget); [drafts](crate::drafts) are added later. A short step leaves out the
//! requests of some [tenants](crate::tenant_schedule).

use crate::Time;
use crate::adapter_schedule::AdapterCandidate;
use crate::prefill_budget::PrefillBudget;
use crate::prefill_slowdown::first_token_due;
use crate::queue::Queue;
use crate::request::AdapterId;
use crate::running::{DecodingCount, RunningRequest, RunningRequests};
use crate::step::{Row, Step, StepShape};
use crate::tenant_schedule::LeftOutTenants;
use std::cmp::Reverse;

/// Requests of an adapter in prefill, in the order of service: by priority, then those of the tenant with the least
/// service, of these the shortest. But the one of them whose first token is the most overdue comes first: else shorter
/// ones could delay it for ever.
pub(crate) fn prompts<'a>(
    running: &'a RunningRequests,
    queue: &Queue,
    prefill: &PrefillBudget,
    adapter: AdapterId,
    now: Time,
) -> Vec<&'a RunningRequest> {
    let prefilling = running.iter().filter(|one| one.is_prefilling());
    let mut prompts: Vec<_> = prefilling.filter(|one| one.adapter() == adapter).collect();
    if prefill.is_unbudgeted() {
        return prompts;
    }
    prompts.sort_by_cached_key(|running| {
        let request = &running.request;
        let counter = queue.counter(request.tenant);
        let priority = Reverse(request.priority);
        (
            priority,
            counter,
            request.tenant,
            running.pending(),
            request.id,
        )
    });
    let rank = |running: &RunningRequest| (running.request.priority, running.request.tenant);
    let first = prompts
        .iter()
        .take_while(|one| rank(one) == rank(prompts[0]));
    let due = first.map(|running| first_token_due(&running.request));
    let late = (0..).zip(due).filter(|(_, due)| *due <= now);
    if let Some((index, _)) = late.min_by_key(|(_, due)| *due) {
        prompts[..=index].rotate_right(1);
    }
    prompts
}

/// The rows of an adapter: decode rows without those of tenants that are left out, then prompts, within a budget of
/// other tokens. At least half of the budget is for prompts that need it, however many known tokens decode rows have.
pub(crate) fn rows(
    running: &RunningRequests,
    adapter: AdapterId,
    left_out: &LeftOutTenants,
    prompts: &[&RunningRequest],
    budget: u32,
    prefill: &PrefillBudget,
) -> Vec<Row> {
    let pending: Vec<_> = prompts.iter().map(|running| running.pending()).collect();
    let for_prompts = pending.iter().sum::<u32>().min(budget.div_ceil(2));
    let mut for_decoding = budget - for_prompts;
    let mut rows = Vec::with_capacity(running.len());
    let decoding = running.iter().filter(|one| one.is_decoding());
    let decoding = decoding.filter(|one| one.adapter() == adapter && !left_out.contains(one));
    rows.extend(decoding.map(|running| {
        let known = running.prefill_tokens().min(for_decoding);
        for_decoding -= known;
        running.row(1 + known)
    }));
    let shares = prefill.divide(&pending, for_prompts + for_decoding);
    let chunks = prompts.iter().zip(shares).filter(|(_, share)| *share > 0);
    rows.extend(chunks.map(|(running, share)| running.row(share)));
    rows
}

/// The rows of a step after a failure: at most `tokens` of the first requests, whether they decode or not, with the
/// adapter of the first; of one request if `one_by_one`. A request at the position of its failure is alone. Also
/// returns how many of the rows decode.
pub(crate) fn recovery_rows(
    running: &RunningRequests,
    tokens: u32,
    one_by_one: bool,
) -> (AdapterId, Vec<Row>, u32) {
    let ready = running.iter().filter(|running| running.is_ready());
    let first = ready.clone().next();
    let adapter = first.map_or(AdapterId::NONE, RunningRequest::adapter);
    let (mut left, mut decoding, mut rows) = (tokens, 0, Vec::new());
    for running in ready.filter(|running| running.adapter() == adapter) {
        let before_failure = running
            .failed_at
            .map(|at| at.saturating_sub(running.computed));
        let alone = before_failure == Some(0);
        if alone && !rows.is_empty() {
            continue;
        }
        let most = before_failure.filter(|_| !alone).unwrap_or(u32::MAX);
        let tokens = running.pending().min(left).min(most);
        if tokens > 0 {
            left -= tokens;
            decoding += u32::from(running.is_decoding());
            rows.push(running.row(tokens));
        }
        if alone || (one_by_one && !rows.is_empty()) {
            break;
        }
    }
    (adapter, rows, decoding)
}

/// A step of these rows, of which `decode_rows` decode. `decoding`: the requests that could, of which `left_out` are
/// left out because of their tenants.
pub(crate) fn step(
    adapter: AdapterId,
    rows: Vec<Row>,
    decode_rows: u32,
    decoding: DecodingCount,
    left_out: u32,
    prefill_budget: u32,
) -> Step {
    let tokens: u32 = rows.iter().map(Row::tokens).sum();
    Step {
        shape: StepShape {
            decode_rows,
            prefill: tokens - decode_rows,
            ..StepShape::default()
        },
        rows,
        adapter,
        prefill_budget,
        skipped: decoding.own - decode_rows - left_out,
        other_adapters: decoding.others,
        other_tenants: left_out,
        ..Step::default()
    }
}

/// The adapters of ready requests, each with its highest priority, and whether one of its requests decodes.
pub(crate) fn adapters(running: &RunningRequests) -> Vec<(AdapterCandidate, bool)> {
    let mut adapters: Vec<(AdapterCandidate, bool)> = Vec::new();
    for running in running.iter().filter(|running| running.is_ready()) {
        let (adapter, priority) = (running.adapter(), running.request.priority);
        let known = adapters.iter_mut().find(|(one, _)| one.adapter == adapter);
        match known {
            Some((candidate, decodes)) => {
                candidate.priority = candidate.priority.max(priority);
                *decodes |= running.is_decoding();
            }
            None => adapters.push((
                AdapterCandidate { adapter, priority },
                running.is_decoding(),
            )),
        }
    }
    adapters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{PrefixScope, Priority, RequestId};
    use crate::step::SeqId;
    use crate::tests::request;

    /// Requests with prompts of 8 tokens, each with an adapter.
    fn running<const N: usize>(adapters: [u8; N]) -> RunningRequests {
        let mut running = RunningRequests::default();
        for (key, adapter) in (0..).zip(adapters) {
            let mut request = request(key, 8, 4);
            request.scope = PrefixScope(0).with(AdapterId(adapter));
            running.push(RunningRequest::new(request, SeqId(key as u16), 0, key));
        }
        running
    }

    fn recovery(running: &RunningRequests, tokens: u32, one_by_one: bool) -> Vec<(u64, u32)> {
        let (_, rows, _) = recovery_rows(running, tokens, one_by_one);
        rows.iter()
            .map(|row| (row.request.0, row.tokens()))
            .collect()
    }

    #[test]
    fn recovery_takes_the_first_requests_of_one_adapter() {
        let running = running([1, 0, 1, 1]);
        assert_eq!(recovery(&running, 20, false), [(0, 8), (2, 8), (3, 4)]);
        assert_eq!(recovery(&running, 20, true), [(0, 8)]);
    }

    #[test]
    fn requests_pass_a_failed_position_alone() {
        let mut running = running([0, 0, 0]);
        for (key, at) in [(0, 5), (1, 0)] {
            running.get_mut(RequestId(key)).unwrap().failed_at = Some(at);
        }
        // The first stops before its position; the second is at it, and waits.
        assert_eq!(recovery(&running, 20, false), [(0, 5), (2, 8)]);
        running.move_to_end(RequestId(0));
        assert_eq!(recovery(&running, 20, false), [(1, 8)]);
    }

    #[test]
    fn adapters_have_their_highest_priority() {
        let mut running = running([0, 1, 1]);
        running.get_mut(RequestId(2)).unwrap().request.priority = Priority(7);
        let found = adapters(&running);
        let found = found
            .iter()
            .map(|(one, decodes)| (one.adapter.0, one.priority.0, *decodes));
        assert!(found.eq([(0, 0, false), (1, 7, false)]));
    }
}
