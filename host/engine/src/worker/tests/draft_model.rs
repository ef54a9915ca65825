//! A draft model changes nothing but the number of steps, whatever it predicts and however it fails.

use super::support::*;
use crate::draft_model::{DraftJob, DraftModel};
use crate::metrics::{EngineMetrics, get};
use crate::{Chunk, GenerateOptions, Token};
use corral_scheduler::{DraftPlan, PrefixScope, RequestId};
use corral_simulator::Fault;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// An engine whose steps take long enough for drafts to pay.
fn engine(draft: Option<TestDraft>) -> TestEngine {
    TestConfig {
        step_time: Duration::from_millis(1),
        draft,
        ..TestConfig::default()
    }
    .start()
}

fn generate(draft: Option<TestDraft>, options: GenerateOptions) -> (Chunk, Arc<EngineMetrics>) {
    let engine = engine(draft);
    let (chunk, outcome) = read(engine.generate(vec![5, 6], options));
    outcome.unwrap();
    (chunk, engine.end())
}

#[test]
fn wrong_drafts_are_rejected() {
    let draft = || TestDraft {
        is_wrong_after: |token| token % 3 == 0,
        ..TestDraft::default()
    };
    let (plain, _) = generate(None, long());
    let (chunk, metrics) = generate(Some(draft()), long());
    assert_eq!(chunk, plain);
    let (accepted, rejected) = (
        get(&metrics.model_drafts_accepted),
        get(&metrics.model_drafts_rejected),
    );
    assert!(accepted > 0 && rejected > 0, "{accepted} {rejected}");
    assert_eq!(get(&metrics.rejected_drafts), rejected);
}

#[test]
fn requests_choose_their_drafts() {
    let with = |most| GenerateOptions {
        max_draft_tokens: most,
        ..long()
    };
    let (_, metrics) = generate(Some(TestDraft::default()), with(Some(0)));
    assert_eq!(get(&metrics.draft_model_steps), 0);
    let fixed = GenerateOptions {
        fixed_token: Some(7),
        ..long()
    };
    let (_, metrics) = generate(Some(TestDraft::default()), fixed);
    assert_eq!(get(&metrics.draft_model_steps), 0);
    let (_, metrics) = generate(Some(TestDraft::default()), with(Some(1)));
    let accepted = get(&metrics.model_drafts_accepted);
    assert!(
        accepted > 0 && accepted < 31,
        "one of two tokens at most: {accepted}"
    );
}

#[test]
fn failing_draft_model_fails_no_request() {
    let faults: BTreeMap<_, _> = (3..1000).map(|step| (step, Fault::Code(-3))).collect();
    let engine = engine(Some(TestDraft {
        faults,
        ..TestDraft::default()
    }));
    for start in [5, 70] {
        let generation = engine.generate(vec![start], long());
        read_tokens(generation, start + 1..start + 61);
    }
    let metrics = engine.end();
    // Each request stops drafting at its first failure.
    let failed = get(&metrics.draft_model_failed_steps);
    assert!((1..=2).contains(&failed), "{failed}");
    assert_eq!(get(&metrics.failed), 0);
    assert_eq!(get(&metrics.draft_model_cells), 0);
}

/// Plans drafts for requests, each with its tokens.
fn draft(
    model: &mut DraftModel<SlowBackend>,
    plans: &[(u64, &[Token], u32)],
) -> Vec<(u64, Vec<Token>)> {
    let jobs: Vec<_> = plans
        .iter()
        .map(|&(id, tokens, drafts)| {
            let request = RequestId(id);
            let state = model.state(request, tokens, drafts).unwrap();
            DraftJob {
                plan: DraftPlan {
                    request,
                    prefill_tokens: state.uncomputed,
                    drafts: state.max_drafts,
                },
                tokens,
                scope: PrefixScope(id / 10),
            }
        })
        .collect();
    let tokens_of = |id: RequestId| {
        let found = plans.iter().find(|plan| plan.0 == id.0);
        found.map_or(&[][..], |plan| plan.1)
    };
    let results = model.run(&jobs, tokens_of);
    assert!(results.failed.is_empty(), "{results:?}");
    let proposals = results.proposals.into_iter();
    proposals
        .map(|(plan, draft)| (plan.request.0, draft))
        .collect()
}

#[test]
fn sequences_keep_accepted_drafts() {
    let mut model = TestDraft::default().model(256);
    let id = RequestId(1);
    let missing = |model: &DraftModel<SlowBackend>, tokens: &[Token]| {
        model.state(id, tokens, 8).unwrap().uncomputed
    };
    assert_eq!(missing(&model, &[1, 2, 3]), 3);
    assert_eq!(
        draft(&mut model, &[(1, &[1, 2, 3], 4)]),
        [(1, vec![4, 5, 6, 7])]
    );
    // The last draft is not computed.
    assert_eq!(model.cells_used(), 6);
    // All were accepted, and a token sampled after them.
    assert_eq!(missing(&model, &[1, 2, 3, 4, 5, 6, 7, 8]), 2);
    // One was accepted.
    assert_eq!(missing(&model, &[1, 2, 3, 4, 9]), 1);
    assert_eq!(
        draft(&mut model, &[(1, &[1, 2, 3, 4, 9], 1)]),
        [(1, vec![10])]
    );
    assert_eq!(model.cells_used(), 5);
    model.retain(|_| false);
    assert_eq!(model.cells_used(), 0);
}

#[test]
fn sequences_of_a_scope_share_prefixes() {
    let mut model = TestDraft::default().model(256);
    let prefix: Vec<Token> = (100..116).collect();
    let long = [&prefix[..], &[1, 2, 3]].concat();
    let other = [&prefix[..12], &[116, 117, 118, 119, 7]].concat();
    let fork = [&prefix[..], &[1, 2, 50, 51]].concat();
    draft(&mut model, &[(11, &long, 1)]);
    assert_eq!(model.cells_used(), 19);
    let plans: [(u64, &[Token], u32); 2] = [(11, &long, 0), (12, &fork[..19], 1)];
    let both = draft(&mut model, &plans);
    assert_eq!(both, [(12, vec![51])]);
    assert_eq!(model.cells_used(), 20, "the fork adds one");
    // Another scope computes all of its tokens.
    draft(&mut model, &[(25, &other, 1)]);
    assert_eq!(model.cells_used(), 20 + 17);
}

#[test]
fn context_of_draft_model_bounds_drafts() {
    let model = TestDraft::default().model(8);
    let most = |length: usize| {
        let state = model.state(RequestId(1), &vec![1; length], 4);
        state.map(|state| state.max_drafts)
    };
    assert_eq!([5, 6, 8, 9].map(most), [Some(4), Some(3), Some(1), Some(0)]);
    assert_eq!(most(10), None);
}
