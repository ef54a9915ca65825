//! `next` and `next-many`: guest sampling, where the guest runs the loop.
//!
//! The next-token requests of one call reach the engine together, so that one step computes them. If the
//! guest goes away, the replies are dropped and the engine drops the requests.

use super::bindings::corral::inference::inference as guest;
use super::counted_sequence::{SharedSequence, lock};
use super::store_access::StoreAccess;
use super::{GuestSequence, HostError, HostResult, invalid, wit};
use crate::counters::DeploymentCounters;
use crate::held_resources::Handles;
use crate::quota::TokenReservation;
use crate::state::State;
use crate::use_count::UseGuard;
use corral_engine::{Distribution, DistributionPart, Error, NextTokenRequest, Reply};
use std::sync::Arc;
use wasmtime::component::Resource;

/// Most sequences of one `next-many`.
const MAX_SEQUENCES: usize = 256;
/// Rows of logits that an instance may wait for. Each takes four bytes per token of the vocabulary.
const MAX_LOGITS_ROWS: usize = 16;

type GuestRequest = (Resource<GuestSequence>, guest::NextTokenRequest);
type GuestReply = Result<guest::Distribution, wit::Error>;

/// A valid request.
struct ValidRequest {
    sequence: SharedSequence,
    /// The request as the engine takes it.
    request: NextTokenRequest,
    /// Context length of its model.
    context: u32,
    reservation: Option<TokenReservation>,
    guard: RequestGuard,
}

/// What a request holds until its reply.
struct RequestGuard {
    /// Marks the sequence as in use.
    _in_use: UseGuard,
    /// Counts a row of logits.
    _row: Option<UseGuard>,
}

/// A request that the engine has accepted.
struct PendingReply {
    reply: Reply<Distribution>,
    counters: Arc<DeploymentCounters>,
    _guard: RequestGuard,
}

/// Requests the next tokens of all sequences. Returns the replies in the same order.
pub(super) async fn next_many(
    mut store: impl StoreAccess,
    requests: Vec<GuestRequest>,
) -> wasmtime::Result<Vec<GuestReply>> {
    let pending = store.with(|state| state.request_next_tokens(requests))?;
    let mut replies = Vec::with_capacity(pending.len());
    for pending in pending {
        replies.push(match pending {
            Ok(pending) => {
                let reply = pending.counters.count_queue_timeout(pending.reply.await);
                reply.map(Into::into).map_err(Into::into)
            }
            Err(error) => Err(error),
        });
    }
    Ok(replies)
}

/// Requests the next token of one sequence.
pub(super) async fn next(
    store: impl StoreAccess,
    sequence: Resource<GuestSequence>,
    request: guest::NextTokenRequest,
) -> HostResult<guest::Distribution> {
    match next_many(store, vec![(sequence, request)]).await?.pop() {
        Some(reply) => Ok(reply?),
        None => Err(Error::Failed("the engine gave no reply".into()).into()),
    }
}

impl State {
    /// Passes all valid requests to the engine. Returns a result for each request, in order.
    fn request_next_tokens(
        &mut self,
        requests: Vec<GuestRequest>,
    ) -> wasmtime::Result<Vec<Result<PendingReply, wit::Error>>> {
        if requests.len() > MAX_SEQUENCES {
            let many = format!(
                "the call has {} sequences; it may have {MAX_SEQUENCES}",
                requests.len()
            );
            let refused = || Err(wit::Error::Invalid(many.clone()));
            return Ok(requests.iter().map(|_| refused()).collect());
        }
        let mut valid = Vec::with_capacity(requests.len());
        let mut results = Vec::with_capacity(requests.len());
        for (sequence, request) in requests {
            match self.validate(&sequence, request) {
                Ok(request) => {
                    valid.push(request);
                    results.push(None);
                }
                Err(HostError::Guest(error)) => results.push(Some(Err(error))),
                Err(HostError::Trap(error)) => return Err(error),
            }
        }
        let mut sent = send(valid, &self.counters).into_iter();
        Ok(results
            .into_iter()
            .filter_map(|result| result.or_else(|| sent.next()))
            .collect())
    }

    fn validate(
        &mut self,
        sequence: &Resource<GuestSequence>,
        request: guest::NextTokenRequest,
    ) -> HostResult<ValidRequest> {
        let mask = match &request.matcher {
            None => None,
            Some(matcher) => {
                if !matches!(request.part, guest::DistributionPart::Top(_)) {
                    return invalid(
                        "a matcher works only with the part top; apply its mask yourself",
                    );
                }
                let engine = self.table.get(sequence)?.engine().clone();
                Some(self.table.get_mut(matcher)?.mask_for(&engine)?)
            }
        };
        let sequence = self.table.get(sequence)?;
        let engine_request = NextTokenRequest {
            part: match request.part {
                guest::DistributionPart::Top(count) => DistributionPart::Top(count),
                guest::DistributionPart::Only(tokens) => DistributionPart::Only(tokens),
                guest::DistributionPart::Logits => DistributionPart::Logits,
            },
            statistics: request.statistics,
            mask,
            adapter: sequence.adapter().map(str::to_owned),
        };
        let context = sequence.engine().info().context;
        let (sequence, in_use) = sequence.begin()?;
        let row = match engine_request.part {
            DistributionPart::Logits => Some(self.handles.take_logits_row()?),
            DistributionPart::Top(_) | DistributionPart::Only(_) => None,
        };
        // A repeated request computes a token again, so it counts at least one.
        let tokens = lock(&sequence).uncounted().max(1);
        let permit = self.quota_permit.as_ref();
        let reservation = permit.map(|permit| permit.reserve(tokens)).transpose();
        Ok(ValidRequest {
            reservation: reservation.map_err(wit::Error::from)?,
            sequence,
            request: engine_request,
            context,
            guard: RequestGuard {
                _in_use: in_use,
                _row: row,
            },
        })
    }
}

/// Passes requests to the engine, and counts the tokens of those that it accepts.
fn send(
    requests: Vec<ValidRequest>,
    counters: &Arc<DeploymentCounters>,
) -> Vec<Result<PendingReply, wit::Error>> {
    let shared: Vec<_> = requests
        .iter()
        .map(|request| Arc::clone(&request.sequence))
        .collect();
    // No sequence occurs twice: its first request marks it as in use.
    let mut locked: Vec<_> = shared.iter().map(|sequence| lock(sequence)).collect();
    let (engine_requests, rest): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .map(|request| {
            let rest = (request.context, request.reservation, request.guard);
            (request.request, rest)
        })
        .unzip();
    let sequences = locked.iter_mut().map(|sequence| &mut sequence.sequence);
    let replies = corral_engine::Sequence::next_many(sequences.zip(engine_requests));
    let replies = replies.into_iter().zip(rest).zip(&mut locked);
    replies
        .map(|((reply, (context, mut reservation, guard)), sequence)| {
            let reply = counters.count_cells_limit(reply, context)?;
            if let Some(reservation) = &mut reservation {
                reservation.mark_used(sequence.uncounted().max(1));
            }
            sequence.count_all();
            Ok(PendingReply {
                reply,
                counters: Arc::clone(counters),
                _guard: guard,
            })
        })
        .collect()
}

impl Handles {
    fn take_logits_row(&self) -> Result<UseGuard, wit::Error> {
        if self.logits_rows.get() >= MAX_LOGITS_ROWS {
            return Err(wit::Error::Invalid(format!(
                "the plugin waits for the maximum of {MAX_LOGITS_ROWS} rows of logits; await some first"
            )));
        }
        Ok(self.logits_rows.guard())
    }
}

impl From<Distribution> for guest::Distribution {
    fn from(distribution: Distribution) -> Self {
        let candidates = distribution.candidates.into_iter();
        Self {
            candidates: candidates
                .map(|(token, logit)| guest::Candidate { token, logit })
                .collect(),
            logits: distribution.logits,
            statistics: distribution.statistics.map(|statistics| guest::Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            position: distribution.position,
        }
    }
}
