//! What a draft model computes before a step.
//!
//! A draft model predicts several tokens of a request one after the other. Its own steps delay the next step, so they
//! must pay: the scheduler learns how long they take (a second [`CostModel`]) and how often a planned draft is accepted,
//! and compares tokens a second with and without. It plans the same number of drafts for the requests whose drafts are
//! accepted most often, or none. Beside other requests, the draft model's steps and the step together must meet the
//! [target](crate::prefill_profile) of a step with prompts. No drafts are planned while a
//! request is in prefill, since prompts fill the step up to that target, or while requests of several adapters decode.
//!
//! Before it drafts for a request, the draft model computes the tokens that it has not seen, at first the whole prompt.
//! That is worth it only if the tokens to come are expected to save more time. It is done in parts if others wait.
//!
//! Costs and acceptance show only where there are drafts, so a few are planned now and then, ever more rarely while they
//! do not pay.

use crate::cost_model::CostModel;
use crate::draft_acceptance::CommonAcceptance;
use crate::request::RequestId;
use crate::step::StepShape;

/// Drafts must raise the tokens a second by this factor: predictions of short steps err by some percent.
const MIN_GAIN: f64 = 1.05;
/// Trials at first where drafts are not expected to pay.
const INITIAL_TRIALS: u32 = 8;
/// Drafts of a trial.
const TRIAL_DRAFTS: u32 = 3;
/// Steps between two trials, at least and at most.
const MIN_TRIAL_INTERVAL: u32 = 64;
const MAX_TRIAL_INTERVAL: u32 = 2048;
/// A trial may take this part of the time that the rest of its request is expected to take, for tokens that the draft
/// model has not seen.
const MAX_TRIAL_FRACTION: f64 = 0.1;
/// Tokens that a draft model has not seen are computed if they take at most this part of the time that they save.
const MAX_PREFILL_FRACTION: f64 = 0.5;
/// Uncomputed tokens that are usual after a step: accepted drafts, a sampled token, and forced ones.
const EXPECTED_UNCOMPUTED_TOKENS: u32 = 32;
/// Uncomputed tokens that are computed before a step while their cost is unknown.
const FIRST_CHUNK: u32 = 64;
/// Fewer uncomputed tokens are not worth a step of the draft model, unless they are the last.
const MIN_CHUNK: u32 = 16;

/// What the draft model knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftState {
    /// Tokens of the request that it has not computed; at least 1.
    pub uncomputed: u32,
    /// Most drafts that it may propose.
    pub max_drafts: u32,
}

/// What the draft model computes for a request before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftPlan {
    /// The request.
    pub request: RequestId,
    /// Tokens of the request to compute now, of those that it has not computed; at least 1.
    pub prefill_tokens: u32,
    /// Drafts to propose then; 0 if tokens of the request are left to compute.
    pub drafts: u32,
}

/// What was learned of a draft model.
#[derive(Clone, Debug)]
pub(crate) struct ModelDrafts {
    pub costs: CostModel,
    pub acceptance: CommonAcceptance,
    trials: u32,
    /// Steps since the last trial that could have had drafts.
    since_trial: u32,
    trial_interval: u32,
    /// Whether the last plans were for uncomputed tokens.
    last_was_prefill: bool,
}

impl Default for ModelDrafts {
    fn default() -> Self {
        Self {
            costs: CostModel::default(),
            acceptance: CommonAcceptance::default(),
            trials: 0,
            since_trial: 0,
            trial_interval: MIN_TRIAL_INTERVAL,
            last_was_prefill: false,
        }
    }
}

/// A request that could have drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftCandidate {
    pub request: RequestId,
    /// Expected acceptance rate of one drafted token.
    pub acceptance: f64,
    pub max_drafts: u32,
    pub uncomputed: u32,
    /// Tokens that it is expected to generate.
    pub remaining: f64,
}

/// The step that drafts would join.
#[derive(Clone, Copy)]
pub(crate) struct NextStep<'a> {
    pub shape: StepShape,
    /// Most drafts of all requests together.
    pub max_drafts: u32,
    /// Most seconds of the step and of drafting.
    pub max_seconds: f64,
    /// Most tokens that the draft model computes in a step.
    pub max_tokens: u32,
    /// Seconds of the step with so many drafts.
    pub seconds: &'a dyn Fn(u32) -> f64,
}

/// Drafts for the first `requests` candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    requests: usize,
    drafts: u32,
    /// Seconds saved per generated token.
    saved_per_token: f64,
}

impl ModelDrafts {
    /// Plans for candidates, the one with the highest acceptance first.
    pub fn plan(&mut self, candidates: &[DraftCandidate], step: NextStep<'_>) -> Vec<DraftPlan> {
        let plans = self.plans(candidates, step);
        if !plans.is_empty() {
            self.since_trial = 0;
            self.trial_interval = MIN_TRIAL_INTERVAL;
            return plans;
        }
        self.since_trial = self.since_trial.saturating_add(1);
        if self.trials >= INITIAL_TRIALS && self.since_trial < self.trial_interval {
            return Vec::new();
        }
        let trial = self.trial(candidates, step);
        if trial.is_some_and(|plan| plan.drafts > 0) {
            self.trials = self.trials.saturating_add(1);
            self.since_trial = 0;
            if self.trials > INITIAL_TRIALS {
                self.trial_interval = (2 * self.trial_interval).min(MAX_TRIAL_INTERVAL);
            }
        }
        trial.into_iter().collect()
    }

    /// Plans that are expected to pay: for uncomputed tokens and for drafts in turns, so that neither waits for long.
    fn plans(&mut self, candidates: &[DraftCandidate], step: NextStep<'_>) -> Vec<DraftPlan> {
        let may_prefill = !std::mem::replace(&mut self.last_was_prefill, false);
        let lags = |candidate: &DraftCandidate| candidate.uncomputed > EXPECTED_UNCOMPUTED_TOKENS;
        if candidates.iter().any(lags) {
            let ready: Vec<_> = candidates
                .iter()
                .copied()
                .filter(|candidate| !lags(candidate))
                .collect();
            if (may_prefill || ready.is_empty())
                && let Some(choice) = self.choose(candidates, step)
            {
                let lagging = candidates[..choice.requests]
                    .iter()
                    .filter(|candidate| lags(candidate));
                let plans = self.prefill_plans(lagging, choice, step);
                if !plans.is_empty() {
                    self.last_was_prefill = true;
                    return plans;
                }
            }
            return self.draft_plans(&ready, step);
        }
        self.draft_plans(candidates, step)
    }

    fn draft_plans(&self, candidates: &[DraftCandidate], step: NextStep<'_>) -> Vec<DraftPlan> {
        let Some(choice) = self.choose(candidates, step) else {
            return Vec::new();
        };
        let plan = |candidate: &DraftCandidate| DraftPlan {
            request: candidate.request,
            prefill_tokens: candidate.uncomputed,
            drafts: choice.drafts.min(candidate.max_drafts),
        };
        candidates[..choice.requests].iter().map(plan).collect()
    }

    /// The number of requests and of drafts that gains the most tokens a second, if that is enough.
    fn choose(&self, candidates: &[DraftCandidate], step: NextStep<'_>) -> Option<Choice> {
        if !self.costs.is_fitted() {
            return None;
        }
        let rows = f64::from(step.shape.decode_rows);
        let plain = (step.seconds)(0);
        let mut best: Option<(f64, Choice)> = None;
        for requests in 1..=candidates.len() {
            let chosen = &candidates[..requests];
            let Ok(count) = u32::try_from(requests) else {
                break;
            };
            let most = chosen
                .iter()
                .map(|candidate| candidate.max_drafts)
                .min()
                .unwrap_or(0);
            let draft_step = self.step_seconds(count, step.shape.n_kv);
            let (mut tokens, mut drafting) = (rows, 0.0);
            let mut next: Vec<f64> = chosen
                .iter()
                .map(|candidate| candidate.acceptance)
                .collect();
            for drafts in 1..=most {
                if drafts * count > step.max_drafts {
                    break;
                }
                drafting += draft_step;
                tokens += next.iter().sum::<f64>();
                for (next, candidate) in next.iter_mut().zip(chosen) {
                    *next *= candidate.acceptance;
                }
                let seconds = (step.seconds)(drafts * count) + drafting;
                if seconds > step.max_seconds {
                    break;
                }
                let rate = tokens / seconds;
                if best.is_none_or(|(best, _)| rate > best) {
                    let choice = Choice {
                        requests,
                        drafts,
                        saved_per_token: plain / rows - seconds / tokens,
                    };
                    best = Some((rate, choice));
                }
            }
        }
        let (rate, choice) = best?;
        (rate > MIN_GAIN * rows / plain).then_some(choice)
    }

    /// Plans for the uncomputed tokens of requests, if they cost less than the drafts of `choice` save.
    fn prefill_plans<'a>(
        &self,
        lagging: impl Iterator<Item = &'a DraftCandidate>,
        choice: Choice,
        step: NextStep<'_>,
    ) -> Vec<DraftPlan> {
        let mut left = self.chunk(step.max_seconds - (step.seconds)(0), step);
        let rows_per_request = f64::from(step.shape.decode_rows) / choice.requests as f64;
        let mut plans = Vec::new();
        for candidate in lagging {
            let saved = choice.saved_per_token * candidate.remaining * rows_per_request;
            let prefill_tokens = candidate.uncomputed.min(left);
            if self.prefill_seconds(candidate.uncomputed, step) > MAX_PREFILL_FRACTION * saved
                || prefill_tokens < MIN_CHUNK.min(candidate.uncomputed)
            {
                continue;
            }
            left -= prefill_tokens;
            plans.push(DraftPlan {
                request: candidate.request,
                prefill_tokens,
                // A request that runs alone goes on at once.
                drafts: match prefill_tokens == candidate.uncomputed
                    && step.max_seconds.is_infinite()
                {
                    true => choice.drafts.min(candidate.max_drafts),
                    false => u32::from(prefill_tokens == candidate.uncomputed),
                },
            });
        }
        plans
    }

    /// A few drafts for the request with the fewest uncomputed tokens.
    fn trial(&self, candidates: &[DraftCandidate], step: NextStep<'_>) -> Option<DraftPlan> {
        let candidate = candidates
            .iter()
            .min_by_key(|candidate| candidate.uncomputed)?;
        let mut plan = DraftPlan {
            request: candidate.request,
            prefill_tokens: candidate.uncomputed,
            drafts: TRIAL_DRAFTS.min(candidate.max_drafts).min(step.max_drafts),
        };
        if plan.drafts == 0 {
            return None;
        }
        if candidate.uncomputed > EXPECTED_UNCOMPUTED_TOKENS {
            let plain = (step.seconds)(0);
            let most = match self.costs.is_fitted() {
                true if self.prefill_seconds(candidate.uncomputed, step)
                    > MAX_TRIAL_FRACTION * candidate.remaining * plain =>
                {
                    0
                }
                true => self.chunk(step.max_seconds - plain, step),
                false => FIRST_CHUNK,
            };
            plan.prefill_tokens = candidate.uncomputed.min(most);
            if plan.prefill_tokens < MIN_CHUNK {
                return None;
            }
            if plan.prefill_tokens < candidate.uncomputed {
                plan.drafts = 0;
            }
        }
        Some(plan)
    }

    /// Uncomputed tokens that the draft model computes in this time.
    fn chunk(&self, seconds: f64, step: NextStep<'_>) -> u32 {
        let token = self.prefill_seconds(FIRST_CHUNK, step) / f64::from(FIRST_CHUNK);
        let seconds = seconds - self.costs.fixed_seconds();
        let most = f64::from(step.max_tokens);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let tokens = (seconds / token.max(1e-9)).clamp(0.0, most) as u32;
        tokens
    }

    /// Seconds of a step of the draft model with so many sequences.
    fn step_seconds(&self, rows: u32, n_kv: u32) -> f64 {
        self.costs.step_seconds(StepShape {
            decode_rows: rows,
            n_kv,
            ..StepShape::default()
        })
    }

    fn prefill_seconds(&self, tokens: u32, step: NextStep<'_>) -> f64 {
        self.costs.prefill_seconds(tokens, step.shape.n_kv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A draft model whose steps take 2 ms and 0.2 ms for each sequence or uncomputed token.
    fn learned() -> ModelDrafts {
        let mut drafts = ModelDrafts::default();
        for i in 0..200_u32 {
            let shape = StepShape {
                decode_rows: 1 + i % 5,
                prefill: 16 * (i % 3),
                n_kv: 256,
                ..StepShape::default()
            };
            let tokens = f64::from(shape.decode_rows + shape.prefill);
            drafts.costs.observe(shape, 0.002 + 0.0002 * tokens);
        }
        drafts.trials = INITIAL_TRIALS;
        drafts
    }

    fn candidate(id: u64, acceptance: f64, uncomputed: u32) -> DraftCandidate {
        DraftCandidate {
            request: RequestId(id),
            acceptance,
            max_drafts: 16,
            uncomputed,
            remaining: 100.0,
        }
    }

    /// Plans where a step takes 40 ms and `row` seconds for each row and draft.
    fn plan(
        drafts: &mut ModelDrafts,
        candidates: &[DraftCandidate],
        row: f64,
        max_seconds: f64,
    ) -> Vec<DraftPlan> {
        let rows = u32::try_from(candidates.len()).unwrap();
        let seconds = |drafts: u32| 0.040 + row * f64::from(rows + drafts);
        let step = NextStep {
            shape: StepShape {
                decode_rows: rows,
                n_kv: 256,
                ..StepShape::default()
            },
            max_drafts: 64,
            max_seconds,
            max_tokens: 512,
            seconds: &seconds,
        };
        drafts.plan(candidates, step)
    }

    #[test]
    fn plans_follow_acceptance_and_costs() {
        let planned = |acceptance, row| {
            let one = [candidate(1, acceptance, 1)];
            let plans = plan(&mut learned(), &one, row, f64::INFINITY);
            plans.first().map_or(0, |plan| plan.drafts)
        };
        let sure = planned(0.95, 0.001);
        let unsure = planned(0.5, 0.001);
        assert!(sure > unsure && unsure > 0, "{sure} {unsure}");
        assert_eq!(planned(0.05, 0.001), 0);
        assert_eq!(planned(0.9, 0.200), 0, "a row costs more than a step");
    }

    #[test]
    fn only_requests_with_accepted_drafts_have_plans() {
        let two = [candidate(1, 0.9, 1), candidate(2, 0.02, 1)];
        let plans = plan(&mut learned(), &two, 0.004, f64::INFINITY);
        assert_eq!(plans.len(), 1);
        assert_eq!(plans[0].request, RequestId(1));
        // Beside others, the time of a step is limited.
        let short = plan(&mut learned(), &two, 0.004, 0.060);
        assert!(short[0].drafts < plans[0].drafts, "{short:?}");
        assert!(plan(&mut learned(), &two, 0.004, 0.048).is_empty());
    }

    #[test]
    fn long_prompts_are_computed_if_that_pays() {
        let known = |missing, max_seconds| {
            let one = [candidate(1, 0.9, missing)];
            let plans = plan(&mut learned(), &one, 0.001, max_seconds);
            plans
                .first()
                .map(|plan| (plan.prefill_tokens, plan.drafts > 0))
        };
        assert_eq!(known(300, f64::INFINITY), Some((300, true)));
        assert_eq!(known(2000, f64::INFINITY), Some((512, false)));
        // It would take longer than the hundred tokens.
        assert_eq!(known(50_000, f64::INFINITY), None);
        // In parts, as far as the time allows.
        let (part, drafts) = known(300, 0.090).expect("it pays");
        assert!((10..300).contains(&part) && !drafts, "{part}");
    }

    #[test]
    fn trials_become_rare() {
        let mut drafts = learned();
        let one = [candidate(1, 0.01, 1)];
        let mut trials = Vec::new();
        for step in 0..8000 {
            if !plan(&mut drafts, &one, 0.001, f64::INFINITY).is_empty() {
                trials.push(step);
            }
        }
        assert!((5..12).contains(&trials.len()), "{trials:?}");
        let mut new = ModelDrafts::default();
        let first = plan(&mut new, &[candidate(1, 0.5, 100)], 0.001, f64::INFINITY);
        assert_eq!((first[0].prefill_tokens, first[0].drafts), (FIRST_CHUNK, 0));
    }
}
