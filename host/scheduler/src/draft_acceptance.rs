//! How often drafts are accepted: those of a request, and those of the draft model over all requests.
//!
//! Later observations count more; without observations, a rate is the expected one. This module decides nothing: `drafts`
//! and `model_drafts` use the rates to decide how many drafts pay.

use crate::Token;

/// Factor of an observation for each later one, for a request, and for all requests together.
const DECAY: f64 = 0.9;
const COMMON_DECAY: f64 = 0.98;
/// Weight of the expectation, in observations.
const PRIOR_WEIGHT: f64 = 2.0;
/// The acceptance rate to expect before anything is known.
const INITIAL_RATE: f64 = 0.5;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// Earlier text of the sequence.
    #[default]
    PromptLookup,
    /// A smaller model.
    DraftModel,
}

/// Observed acceptances, with decaying weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acceptance {
    accepted: f64,
    rejected: f64,
}

impl Acceptance {
    /// The probability that a draft is accepted if all before it are. Without observations it is `expected`.
    pub fn rate(&self, expected: f64) -> f64 {
        let observed = self.accepted + self.rejected;
        (self.accepted + PRIOR_WEIGHT * expected) / (observed + PRIOR_WEIGHT)
    }

    /// Multiplies the weight of the rejections by `factor`.
    pub fn decay_rejections(&mut self, factor: f64) {
        self.rejected *= factor;
    }

    /// Records accepted drafts, and whether the next one was rejected.
    fn observe(&mut self, accepted: u32, rejected: bool, decay: f64) {
        self.accepted = decay * self.accepted + f64::from(accepted);
        self.rejected = decay * self.rejected + f64::from(u8::from(rejected));
    }
}

/// The acceptance of a draft model's drafts over all requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommonAcceptance {
    /// Of the drafts that it proposed.
    proposed: Acceptance,
    /// Of the drafts that were planned. One that the draft model does not propose counts as rejected.
    planned: Acceptance,
}

impl CommonAcceptance {
    /// The acceptance rate to expect of a draft that is planned for a request.
    pub fn planned(&self, drafts: &RequestDrafts) -> f64 {
        drafts.planned.rate(self.planned.rate(INITIAL_RATE))
    }

    /// The acceptance rate to expect of the proposed drafts of a request.
    pub fn proposed(&self, drafts: &RequestDrafts) -> f64 {
        match drafts.source {
            DraftSource::PromptLookup => drafts.lookup.rate(INITIAL_RATE),
            DraftSource::DraftModel => drafts.model.rate(self.proposed.rate(INITIAL_RATE)),
        }
    }
}

/// A request's drafts and their acceptance.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestDrafts {
    /// Empty if nothing is proposed.
    pub tokens: Vec<Token>,
    pub source: DraftSource,
    /// How many drafts were planned.
    planned_count: u32,
    /// Acceptance of prompt lookup's drafts.
    lookup: Acceptance,
    /// Acceptance of the drafts that the draft model proposed.
    model: Acceptance,
    /// Acceptance of the drafts that were planned.
    pub planned: Acceptance,
}

impl RequestDrafts {
    /// Replaces the proposed drafts by those of prompt lookup.
    pub fn propose(&mut self, tokens: &[Token]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.source = DraftSource::PromptLookup;
    }

    /// Replaces the proposed drafts by those of a draft model, of which `planned` were planned.
    pub fn propose_planned(
        &mut self,
        tokens: &[Token],
        planned: u32,
        common: &mut CommonAcceptance,
    ) {
        self.propose(tokens);
        self.source = DraftSource::DraftModel;
        self.planned_count = planned;
        if tokens.is_empty() && planned > 0 {
            self.planned.observe(0, true, DECAY);
            common.planned.observe(0, true, COMMON_DECAY);
        }
    }

    /// The acceptance of the proposed drafts.
    pub fn acceptance_mut(&mut self) -> &mut Acceptance {
        match self.source {
            DraftSource::PromptLookup => &mut self.lookup,
            DraftSource::DraftModel => &mut self.model,
        }
    }

    /// Records a row with `drafts` of the proposed ones.
    pub fn observe(&mut self, drafts: u32, accepted: u32, common: &mut CommonAcceptance) {
        let rejected = accepted < drafts;
        self.acceptance_mut().observe(accepted, rejected, DECAY);
        if self.source == DraftSource::DraftModel {
            common.proposed.observe(accepted, rejected, COMMON_DECAY);
            // The model stopped early, and all that it proposed were accepted.
            let proposed = self.tokens.len();
            let stopped = drafts as usize == proposed && drafts < self.planned_count;
            let ended = rejected || stopped;
            self.planned.observe(accepted, ended, DECAY);
            common.planned.observe(accepted, ended, COMMON_DECAY);
        }
    }
}

/// How many drafts of a row were accepted, given the tokens that it gained. The last of these never counts: it is
/// computed in a later step, since the token after it is still to be sampled.
pub fn accepted_drafts(drafts: &[Token], gained: &[Token]) -> u32 {
    let but_last = &gained[..gained.len().saturating_sub(1)];
    let equal = drafts.iter().zip(but_last).take_while(|(a, b)| a == b);
    u32::try_from(equal.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_gained_token_is_never_accepted() {
        assert_eq!(accepted_drafts(&[1, 2, 3], &[1, 2, 9]), 2);
        assert_eq!(accepted_drafts(&[1, 2, 3], &[1, 2]), 1);
        assert_eq!(accepted_drafts(&[1], &[]), 0);
    }

    #[test]
    fn acceptance_follows_recent_drafts() {
        let mut common = CommonAcceptance::default();
        let mut drafts = RequestDrafts::default();
        drafts.propose(&[1, 2, 3, 4]);
        assert!((common.proposed(&drafts) - 0.5).abs() < f64::EPSILON);
        (0..50).for_each(|_| drafts.observe(4, 4, &mut common));
        assert!(common.proposed(&drafts) > 0.95);
        (0..50).for_each(|_| drafts.observe(4, 0, &mut common));
        assert!(common.proposed(&drafts) < 0.15);
    }

    #[test]
    fn sources_have_rates_of_their_own() {
        let mut common = CommonAcceptance::default();
        let mut drafts = RequestDrafts::default();
        for _ in 0..50 {
            drafts.propose(&[1, 2]);
            drafts.observe(2, 0, &mut common);
            drafts.propose_planned(&[1, 2], 2, &mut common);
            drafts.observe(2, 2, &mut common);
        }
        assert!(common.proposed(&drafts) > 0.9);
        // A new request is expected to fare like the others.
        let mut new = RequestDrafts::default();
        assert!((common.proposed(&new) - 0.5).abs() < f64::EPSILON);
        new.propose_planned(&[1], 2, &mut common);
        assert!(common.proposed(&new) > 0.9 && common.planned(&new) > 0.9);
    }

    #[test]
    fn early_stop_counts_against_orders_only() {
        let mut common = CommonAcceptance::default();
        let mut drafts = RequestDrafts::default();
        for _ in 0..50 {
            drafts.propose_planned(&[1], 4, &mut common);
            drafts.observe(1, 1, &mut common);
            drafts.propose_planned(&[], 4, &mut common);
        }
        assert!(common.proposed(&drafts) > 0.9);
        let planned = common.planned(&drafts);
        assert!((0.25..0.45).contains(&planned), "{planned}");
        // A part of the proposed drafts tells nothing of the rest.
        (0..50).for_each(|_| {
            drafts.propose_planned(&[1, 2], 2, &mut common);
            drafts.observe(1, 1, &mut common);
        });
        assert!(common.planned(&drafts) > 0.9);
    }
}
