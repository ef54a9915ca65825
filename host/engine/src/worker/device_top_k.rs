//! Device top-k: rows of which the backend copied only the k highest logits.
//!
//! The scheduler gives such rows to requests that usually need no more ([`logits_kind`]). If the copied logits do not
//! determine a result, nothing is drawn, and the scheduler computes the last token again with all logits
//! ([`SampleError::NeedsAllLogits`]).
//!
//! Optional, and not yet measured on a GPU. The worker handles [`Logits::TopK`] here only, except that
//! `ConstrainedSampler::sample` restores the sampler chain after a miss.

use super::RequestWork;
use super::step_output::SampleError;
use crate::next_token::{Distribution, DistributionPart, NextTokenRequest};
use crate::{GenerateOptions, Token};
use corral_sampling::{Logits, Scratch, TopKMiss, TopLogits};
use corral_scheduler::LogitsKind;

/// The logits that a request needs if the device selects `top_k` of them.
pub(super) fn logits_kind(work: &RequestWork, top_k: Option<u32>) -> LogitsKind {
    let suffices = |k| match work {
        RequestWork::Generate { options, .. } => generation_fits(options, k),
        RequestWork::NextToken { request, .. } => next_token_fits(request, k),
    };
    match top_k.is_some_and(suffices) {
        true => LogitsKind::TopK,
        false => LogitsKind::All,
    }
}

/// Whether the `k` highest logits usually suffice to sample a token.
fn generation_fits(options: &GenerateOptions, k: u32) -> bool {
    // Log probabilities need the whole row, and drafts need several rows of a step.
    if options.logprobs.is_some() || options.max_draft_tokens.is_some_and(|most| most > 0) {
        return false;
    }
    match &options.external_sampler {
        // The tokens that a grammar allows are rarely among the likeliest.
        Some(_) if options.constraint.is_some() => false,
        Some(factory) => {
            let request = factory.request_options();
            !request.statistics && request.candidates < k
        }
        None => corral_sampling::top_k_suffices(&options.samplers, k, options.max_tokens),
    }
}

/// Whether the `k` highest logits usually suffice for the distribution.
fn next_token_fits(request: &NextTokenRequest, k: u32) -> bool {
    // The tokens that a mask allows are rarely among the likeliest.
    let plain = !request.statistics && request.mask.is_none();
    matches!(request.part, DistributionPart::Top(count) if plain && count < k)
}

/// The whole row.
pub(super) fn all_logits(logits: Logits<'_>) -> Result<&[f32], SampleError> {
    match logits {
        Logits::Full(row) => Ok(row),
        Logits::TopK(_) => Err(SampleError::NeedsAllLogits),
    }
}

/// The likeliest tokens that `mask` allows, at most `count`.
pub(super) fn most_likely(
    logits: Logits<'_>,
    mask: Option<&[u32]>,
    count: usize,
    scratch: &mut Scratch,
) -> Result<Vec<(Token, f32)>, TopKMiss> {
    match logits {
        Logits::Full(row) => Ok(corral_sampling::most_likely(row, mask, count, scratch)),
        Logits::TopK(top) => top.most_likely(mask, count, scratch),
    }
}

/// The requested part of a row after `position` tokens.
pub(super) fn distribution(
    request: &NextTokenRequest,
    logits: Logits<'_>,
    position: u32,
    scratch: &mut Scratch,
) -> Result<Distribution, SampleError> {
    match logits {
        Logits::Full(row) => Ok(request.distribution(row, position, scratch)?),
        Logits::TopK(top) => Ok(top_k_distribution(request, top, position, scratch)?),
    }
}

fn top_k_distribution(
    request: &NextTokenRequest,
    top: TopLogits<'_>,
    position: u32,
    scratch: &mut Scratch,
) -> Result<Distribution, TopKMiss> {
    let DistributionPart::Top(count) = request.part else {
        return Err(TopKMiss);
    };
    let candidates = top.most_likely(request.mask.as_deref(), count as usize, scratch)?;
    // Only the whole row tells whether no token is left at all.
    if request.statistics || (candidates.is_empty() && count > 0) {
        return Err(TopKMiss);
    }
    Ok(Distribution {
        candidates,
        logits: Vec::new(),
        statistics: None,
        position,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 5] = [0.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];

    fn top(count: u32) -> NextTokenRequest {
        NextTokenRequest::new(DistributionPart::Top(count))
    }

    fn from_row(request: &NextTokenRequest) -> Distribution {
        let scratch = &mut Scratch::default();
        request.distribution(&ROW, 7, scratch).unwrap()
    }

    fn from_top_k(request: &NextTokenRequest) -> Result<Distribution, TopKMiss> {
        let top = TopLogits {
            tokens: &[4, 3, 1],
            logits: &[3.0, 2.0, 3.0],
            vocabulary: ROW.len(),
        };
        top_k_distribution(request, top, 7, &mut Scratch::default())
    }

    #[test]
    fn top_k_distribution_equals_row_or_misses() {
        assert_eq!(from_top_k(&top(2)), Ok(from_row(&top(2))));
        assert_eq!(from_top_k(&top(3)), Err(TopKMiss));
        let fits: Vec<_> = (1..5)
            .map(|count| next_token_fits(&top(count), 3))
            .collect();
        assert_eq!(fits, [true, true, false, false]);
        let statistics = NextTokenRequest {
            statistics: true,
            ..top(1)
        };
        let logits = NextTokenRequest::new(DistributionPart::Logits);
        let only = NextTokenRequest::new(DistributionPart::Only(vec![4]));
        for request in [statistics, logits, only] {
            assert!(!next_token_fits(&request, 3));
            assert_eq!(from_top_k(&request), Err(TopKMiss));
        }
        let masked = NextTokenRequest {
            mask: Some(vec![0b1000]),
            ..top(1)
        };
        assert!(!next_token_fits(&masked, 3));
        assert_eq!(from_top_k(&masked), Ok(from_row(&masked)));
    }
}
