//! A draft model: computes what the scheduler orders before a step, and is wrong at times.

use super::Simulation;
use corral_scheduler::{DraftOrder, DraftState, RequestId, RequestState};
use std::collections::BTreeSet;
use std::time::Duration;

impl Simulation {
    /// Computes the orders of the scheduler, and proposes the drafts.
    pub(super) fn run_draft_model(&mut self) {
        let (alive, arrivals) = (&self.alive, &self.arrivals);
        let orders = self.scheduler.plan_drafts(|id, tokens| {
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
        if orders.is_empty() {
            return;
        }
        self.check_orders(&orders);
        let known: u32 = orders.iter().map(|order| order.prefill_tokens).sum();
        self.draft_step(orders.len(), known);
        let mut drafts = vec![Vec::new(); orders.len()];
        let mut drafting: Vec<_> = (0..orders.len()).collect();
        for (order, index) in orders.iter().zip(0..) {
            let alive = self.alive.get_mut(&order.request).expect("checked");
            let length = u32::try_from(alive.text.len()).unwrap();
            alive.drafted = alive.drafted.min(length - 1) + order.prefill_tokens;
            if order.drafts == 0 {
                assert!(alive.drafted < length);
                drafting.retain(|one| *one != index);
            }
        }
        // The first step of this loop is the one above.
        for step in 0.. {
            drafting.retain(|&index| {
                let order = orders[index];
                let alive = &self.alive[&order.request];
                let draft: &mut Vec<_> = &mut drafts[index];
                match self.prediction(order.request, alive.text.len() + draft.len()) {
                    Some(token) => {
                        draft.push(token);
                        draft.len() < order.drafts as usize
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
        for (order, draft) in orders.iter().zip(drafts) {
            if order.drafts > 0 {
                self.scheduler
                    .add_model_drafts(order.request, &draft, order.drafts);
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

    /// Orders are for decoding requests of one adapter, each once, and within what they may have.
    fn check_orders(&self, orders: &[DraftOrder]) {
        assert!(!self.scheduler.is_recovering());
        let mut seen: BTreeSet<RequestId> = BTreeSet::new();
        for order in orders {
            assert!(seen.insert(order.request), "two orders for a request");
            let alive = &self.alive[&order.request];
            let arrival = &self.arrivals[alive.index];
            assert!(arrival.external_sampler.is_none() && arrival.max_tokens > 0);
            let most = arrival.model_drafts.min(self.config.max_drafts);
            assert!(order.prefill_tokens > 0 && order.drafts <= most);
            let generated = u32::try_from(alive.tokens.len()).unwrap();
            assert!(generated + order.drafts < arrival.max_tokens);
            let length = u32::try_from(alive.text.len()).unwrap();
            let missing = length - alive.drafted.min(length - 1);
            let complete = order.prefill_tokens == missing;
            assert!(order.prefill_tokens <= missing && complete == (order.drafts > 0));
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
