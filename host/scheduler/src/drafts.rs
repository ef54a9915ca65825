//! Speculative decoding: rows that continue with draft tokens.
//!
//! The caller of a decoding request may propose *drafts*: the tokens that probably come next, from
//! [prompt lookup or a draft model](crate::DraftSource). What a draft model computes is decided
//! [before](crate::model_drafts) the step. A row computes some of the drafts after its known tokens, and a token is
//! sampled after each. While that is the next draft, the draft is accepted and its cells stay; the cells of the others
//! are freed. So a step can gain several tokens, and the text is the same as without drafts (Leviathan et al., "Fast
//! Inference from Transformers via Speculative Decoding", 2023; here a draft is one token, not a distribution).
//!
//! Drafts come last. They take free cells or those of unretained entries, and no request is preempted or waits for
//! them. A step has drafts as long as it is expected to gain more tokens a second than without, and, unless a request
//! decodes alone, to stay within the [target](crate::prefill_profile) of a step with prompts. The acceptance rate of a
//! request's drafts predicts the gain; so where drafts are wrong, or many rows make each token expensive, there are
//! none. Since their cost shows only in steps that have some, a few are tried now and then.

use crate::config::SchedulerConfig;
use crate::cost_model::CostModel;
use crate::draft_acceptance::CommonAcceptance;
use crate::kv_cache::KvCache;
use crate::prefill_profile::PrefillProfile;
use crate::request::LogitsKind;
use crate::running::RunningRequests;
use crate::step::{Row, Step, StepShape};
use crate::step_size_limit::StepSizeLimit;

/// Numbers of drafts in a step; the [`StepSizeLimit`] is the largest that may be tried now.
const SIZES: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Trials at first where no drafts are expected to pay.
const INITIAL_TRIALS: u32 = 16;
/// After those, one in this many steps is a trial.
const TRIAL_INTERVAL: u32 = 32;
/// Drafts of a trial.
const TRIAL_DRAFTS: u32 = 2;
/// A draft that is less likely to be accepted is not worth its sampling.
const MIN_ACCEPTANCE: f64 = 0.05;
/// Decay of a request's rejections each time that a step takes none of its drafts.
pub(crate) const SKIPPED_DRAFT_DECAY: f64 = 0.98;

/// Decides how many drafts a step has, by what was learned of steps with drafts.
#[derive(Clone, Debug)]
pub(crate) struct DraftPolicy {
    size_limit: StepSizeLimit,
    trials: u32,
    /// Steps since the last one with drafts, of those that could have had some.
    steps_without_drafts: u32,
}

impl Default for DraftPolicy {
    fn default() -> Self {
        Self {
            size_limit: StepSizeLimit::new(0, SIZES.len()),
            trials: 0,
            steps_without_drafts: 0,
        }
    }
}

/// A row that could have drafts.
struct Candidate {
    /// Its index in the step.
    row: usize,
    acceptance: f64,
    /// The probability that the next draft and all before it are accepted.
    next: f64,
    most: u32,
    taken: u32,
}

impl DraftPolicy {
    /// Extends rows of a step by drafts, as far as that pays and cells are free.
    pub fn extend(
        &mut self,
        step: &mut Step,
        running: &mut RunningRequests,
        kv: &mut KvCache,
        costs: &CostModel,
        profile: &PrefillProfile,
        common: &CommonAcceptance,
    ) {
        if running.iter().all(|r| r.drafts.tokens.is_empty()) {
            return;
        }
        let mut candidates = candidates(&step.rows, running, &kv.config, common);
        if candidates.is_empty() {
            return;
        }
        let tokens: u32 = step.rows.iter().map(Row::tokens).sum();
        let room = kv.config.max_step_tokens.saturating_sub(tokens);
        let shape = StepShape {
            // Overlapped prompts may still run when the step begins.
            prefill: step.shape.prefill + step.overlapped,
            n_kv: kv.cells.n_kv(),
            ..step.shape
        };
        // A request that decodes alone delays nobody.
        let waiting = step.other_adapters + step.other_tenants;
        let alone = shape.decode_rows == 1 && shape.prefill == 0 && waiting == 0;
        let max_seconds = match alone {
            true => f64::INFINITY,
            false => profile.max_seconds(costs, shape),
        };
        let mut drafts = self.choose(shape, &mut candidates, room, max_seconds, costs, profile);
        kv.evict_unretained(tokens.saturating_add(drafts));
        let cells = kv.cells.free().saturating_sub(tokens);
        // The least likely drafts are left out.
        while drafts > cells {
            let taken = candidates.iter_mut().filter(|one| one.taken > 0);
            let Some(least) = taken.min_by(|a, b| a.next.total_cmp(&b.next)) else {
                break;
            };
            least.taken -= 1;
            least.next /= least.acceptance;
            drafts -= 1;
        }
        for candidate in candidates {
            let row = &mut step.rows[candidate.row];
            row.drafts = candidate.taken;
            row.to += candidate.taken;
            if candidate.taken == 0
                && let Some(running) = running.get_mut(row.request)
            {
                running
                    .drafts
                    .acceptance_mut()
                    .decay_rejections(SKIPPED_DRAFT_DECAY);
            }
        }
        step.shape.drafts = drafts;
    }

    /// Takes the likeliest drafts, as many as pay. Returns their number.
    fn choose(
        &mut self,
        shape: StepShape,
        candidates: &mut [Candidate],
        room: u32,
        max_seconds: f64,
        costs: &CostModel,
        profile: &PrefillProfile,
    ) -> u32 {
        let seconds = |drafts, prefill| {
            let shape = StepShape {
                drafts,
                prefill,
                ..shape
            };
            profile.seconds(costs, shape)
        };
        let room = room.min(self.most());
        let likeliest = |candidates: &mut [Candidate]| {
            let left = (0..candidates.len()).filter(|&i| candidates[i].taken < candidates[i].most);
            left.max_by(|&a, &b| candidates[a].next.total_cmp(&candidates[b].next))
        };
        let (mut drafts, mut tokens) = (0, f64::from(shape.decode_rows));
        while drafts < room && costs.is_fitted() {
            let Some(best) = likeliest(candidates) else {
                break;
            };
            let best = &mut candidates[best];
            // Tokens a second must grow: (tokens + next) / after > tokens / before.
            let (before, after) = (seconds(drafts, 0), seconds(drafts + 1, 0));
            let pays =
                best.next >= MIN_ACCEPTANCE && best.next * before > tokens * (after - before);
            let expected = seconds(drafts + 1, shape.prefill);
            if !pays || expected > max_seconds {
                break;
            }
            tokens += best.next;
            best.taken += 1;
            best.next *= best.acceptance;
            drafts += 1;
        }
        self.steps_without_drafts = match drafts {
            0 => self.steps_without_drafts.saturating_add(1),
            _ => 0,
        };
        let due = self.trials < INITIAL_TRIALS || self.steps_without_drafts >= TRIAL_INTERVAL;
        if drafts == 0 && due && shape.prefill == 0 {
            self.steps_without_drafts = 0;
            self.trials = self.trials.saturating_add(1);
            if let Some(best) = likeliest(candidates) {
                let best = &mut candidates[best];
                drafts = TRIAL_DRAFTS.min(best.most).min(room);
                best.taken = drafts;
            }
        }
        drafts
    }

    /// Most drafts of the next step.
    pub fn most(&self) -> u32 {
        SIZES[self.size_limit.index()]
    }

    /// Learns from a step. `costs` and `profile` tell what it should have taken.
    pub fn observe(
        &mut self,
        shape: StepShape,
        seconds: f64,
        costs: &CostModel,
        profile: &PrefillProfile,
    ) {
        if shape.drafts == 0 || !costs.is_fitted() {
            return;
        }
        let met = shape.decode_rows == 1 || profile.meets_target(costs, shape, seconds);
        let index = SIZES.partition_point(|&most| most < shape.drafts);
        self.size_limit.observe(index, met);
    }
}

fn candidates(
    rows: &[Row],
    running: &RunningRequests,
    config: &SchedulerConfig,
    common: &CommonAcceptance,
) -> Vec<Candidate> {
    let candidate = |(index, row): (usize, &Row)| {
        let running = running.get(row.request)?;
        let (request, drafts) = (&running.request, &running.drafts);
        // One more token is sampled after the drafts.
        let left = request
            .max_tokens
            .checked_sub(request.progress.generated + 1)?;
        let most = u32::try_from(drafts.tokens.len()).unwrap_or(u32::MAX);
        let most = most.min(left);
        // These ids give logits after one position only.
        let single_output = config.logits_of(row.seq) == LogitsKind::TopK;
        let can = row.output && running.is_decoding() && most > 0 && !single_output;
        let acceptance = common.proposed(drafts);
        can.then_some(Candidate {
            row: index,
            acceptance,
            next: acceptance,
            most,
            taken: 0,
        })
    };
    rows.iter().enumerate().filter_map(candidate).collect()
}
