//! How often the drafts of a request are accepted.

use crate::Token;

/// Factor of an observation for each later one.
const DECAY: f64 = 0.9;

/// A request's drafts and their acceptance rate.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestDrafts {
    /// Empty if nothing is proposed.
    pub tokens: Vec<Token>,
    /// Accepted drafts, and first rejected ones, with decaying weights.
    accepted: f64,
    pub rejected: f64,
}

impl RequestDrafts {
    /// The probability that a draft is accepted if those before it are.
    pub fn acceptance(&self) -> f64 {
        (self.accepted + 1.0) / (self.accepted + self.rejected + 2.0)
    }

    /// Records a row with drafts.
    pub fn observe(&mut self, drafts: u32, accepted: u32) {
        self.accepted = DECAY * self.accepted + f64::from(accepted);
        self.rejected = DECAY * self.rejected + f64::from(u8::from(accepted < drafts));
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
        let mut drafts = RequestDrafts::default();
        assert!((drafts.acceptance() - 0.5).abs() < f64::EPSILON);
        (0..50).for_each(|_| drafts.observe(4, 4));
        assert!(drafts.acceptance() > 0.95);
        (0..50).for_each(|_| drafts.observe(4, 0));
        assert!(drafts.acceptance() < 0.15);
    }
}
