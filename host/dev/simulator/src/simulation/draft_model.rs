//! A draft model: computes what the scheduler plans before a step, and is wrong at times.

use super::Simulation;
use corral_scheduler::{DraftPlan, DraftState, RequestId, RequestState};
use std::collections::BTreeSet;
use std::time::Duration;

impl Simulation {
    /// Computes the plans of the scheduler, and proposes the drafts.
    pub(super) fn run_draft_model(&mut self) {
        let (alive, arrivals) = (&self.alive, &self.arrivals);
        let plans = self.scheduler.plan_drafts(|id, tokens| {
            let alive = &alive[&id];
            assert_eq!(tokens, alive.text);
            let arrival = &arrivals[alive.index];
            let max_drafts = arrival.model_drafts;
            let length = u32::try_from(tokens.len()).unwrap();
            let state = DraftState {
                uncomputed: length - alive.drafted.min(length - 1),
                max_drafts,
            };
            (max_drafts > 0 && arrival.external_sampler.is_none()).then_some(state)
        });
        if plans.is_empty() {
            return;
        }
        self.check_plans(&plans);
        let known: u32 = plans.iter().map(|plan| plan.prefill_tokens).sum();
        self.draft_step(plans.len(), known);
        let mut drafts = vec![Vec::new(); plans.len()];
        let mut drafting: Vec<_> = (0..plans.len()).collect();
        for (plan, index) in plans.iter().zip(0..) {
            let alive = self.alive.get_mut(&plan.request).expect("checked");
            let length = u32::try_from(alive.text.len()).unwrap();
            alive.drafted = alive.drafted.min(length - 1) + plan.prefill_tokens;
            if plan.drafts == 0 {
                assert!(alive.drafted < length);
                drafting.retain(|one| *one != index);
            }
        }
        // The first step of this loop is the one above.
        for step in 0.. {
            drafting.retain(|&index| {
                let plan = plans[index];
                let alive = &self.alive[&plan.request];
                let draft: &mut Vec<_> = &mut drafts[index];
                match self.prediction(plan.request, alive.text.len() + draft.len()) {
                    Some(token) => {
                        draft.push(token);
                        draft.len() < plan.drafts as usize
                    }
                    None => false,
                }
            });
            if drafting.is_empty() {
                break;
            }
            assert!(step < self.config.max_drafts, "too many steps");
            self.draft_step(drafting.len(), u32::try_from(drafting.len()).unwrap());
        }
        for (plan, draft) in plans.iter().zip(drafts) {
            if plan.drafts > 0 {
                self.scheduler
                    .add_model_drafts(plan.request, &draft, plan.drafts);
            }
        }
    }

    fn draft_step(&mut self, rows: usize, tokens: u32) {
        let machine = self.machine;
        let seconds = machine.draft_step + machine.draft_token * f64::from(tokens);
        let took = Duration::from_secs_f64(seconds);
        self.now += took;
        self.drafting += took;
        let rows = u32::try_from(rows).unwrap();
        self.scheduler.draft_step_done(rows, tokens, took);
    }

    /// Plans are for decoding requests of one adapter, each once, and within what they may have.
    fn check_plans(&self, plans: &[DraftPlan]) {
        assert!(!self.scheduler.is_recovering());
        let mut seen: BTreeSet<RequestId> = BTreeSet::new();
        for plan in plans {
            assert!(seen.insert(plan.request), "two plans for a request");
            let alive = &self.alive[&plan.request];
            let arrival = &self.arrivals[alive.index];
            assert!(arrival.external_sampler.is_none() && arrival.max_tokens > 0);
            let most = arrival.model_drafts.min(self.config.max_drafts);
            assert!(plan.prefill_tokens > 0 && plan.drafts <= most);
            let generated = u32::try_from(alive.tokens.len()).unwrap();
            assert!(generated + plan.drafts < arrival.max_tokens);
            let length = u32::try_from(alive.text.len()).unwrap();
            let missing = length - alive.drafted.min(length - 1);
            let complete = plan.prefill_tokens == missing;
            assert!(plan.prefill_tokens <= missing && complete == (plan.drafts > 0));
        }
        let requests = self.scheduler.requests();
        let mut adapters = BTreeSet::new();
        for request in requests {
            assert_ne!(request.state, RequestState::Prefill, "prompts come first");
            if request.state == RequestState::Decode {
                adapters.insert(request.adapter);
            } else {
                assert!(!seen.contains(&request.id), "it does not decode");
            }
        }
        assert_eq!(adapters.len(), 1);
    }
}
