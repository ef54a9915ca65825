//! Lets the draft model compute what the scheduler plans, between two steps.

use super::Worker;
use crate::backend::Backend;
use crate::draft_model::DraftJob;
use crate::generate_options::MAX_DRAFTS;
use crate::metrics::{add, add_time, set};

impl<B: Backend> Worker<B> {
    /// Computes drafts for the next step, and frees the sequences of requests that ended. A failure of the draft model
    /// turns drafting off for the requests of its step.
    pub(super) fn run_draft_model(&mut self) {
        let Some(model) = &mut self.draft_model else {
            return;
        };
        let (requests, metrics) = (&mut self.requests, &self.metrics);
        model.retain(|id| {
            let request = requests.get(&id);
            let generation = request.and_then(|request| request.generation());
            generation.is_some_and(|generation| generation.uses_draft_model)
        });
        let plans = self.scheduler.plan_drafts(|id, tokens| {
            let generation = requests.get(&id)?.generation()?;
            if !generation.uses_draft_model {
                return None;
            }
            let most = generation.options.max_draft_tokens.unwrap_or(MAX_DRAFTS);
            model.state(id, tokens, most.into())
        });
        if !plans.is_empty() {
            model
                .backend_mut()
                .use_threads(self.compute_threads.threads());
            let scheduler = &self.scheduler;
            let jobs: Vec<_> = plans
                .into_iter()
                .map(|plan| DraftJob {
                    plan,
                    tokens: scheduler.tokens(plan.request),
                    scope: scheduler.scope(plan.request),
                })
                .collect();
            let results = model.run(&jobs, |id| scheduler.tokens(id));
            for step in &results.steps {
                self.scheduler
                    .draft_step_done(step.sequences, step.tokens, step.took);
                add(&metrics.draft_model_steps, 1);
                add(&metrics.draft_model_computed, step.tokens.into());
                add_time(&metrics.draft_model_nanos, step.took);
            }
            add(&metrics.draft_model_failed_steps, results.failed_steps);
            for (plan, drafts) in &results.proposals {
                add(&metrics.model_drafts_proposed, drafts.len() as u64);
                self.scheduler
                    .add_model_drafts(plan.request, drafts, plan.drafts);
            }
            for id in results.failed {
                let request = requests.get_mut(&id);
                if let Some(generation) = request.and_then(|request| request.generation_mut()) {
                    generation.uses_draft_model = false;
                }
            }
        }
        set(&metrics.draft_model_cells, model.cells_used().into());
    }
}
