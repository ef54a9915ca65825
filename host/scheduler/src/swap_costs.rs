//! The cost of moving a sequence's state out of the cells and back, and when a move pays.
//!
//! The same move serves *swapping* retained sequences and preempted requests, and *offloading* prefixes that are
//! not retained. Its time is proportional to the tokens. The rate is learned from completed moves.

/// Seconds for a token before the first move.
const INITIAL_SECONDS: f64 = 30e-6;
/// Weight of a move of [`FULL_WEIGHT_TOKENS`] or more in the mean. The time of a short move is mostly fixed costs.
const MOVE_WEIGHT: f64 = 0.2;
const FULL_WEIGHT_TOKENS: f64 = 64.0;
/// How far the rate returns to the initial one each time slow moves cause a prefix to be dropped.
const DECAY: f64 = 0.02;

/// The learned cost of moves.
#[derive(Clone, Debug)]
pub(crate) struct SwapCosts {
    seconds_per_token: f64,
    /// Tokens of the longest prefix that can be offloaded, as far as is known.
    pub longest_prefix: u32,
}

impl Default for SwapCosts {
    fn default() -> Self {
        Self {
            seconds_per_token: INITIAL_SECONDS,
            longest_prefix: u32::MAX,
        }
    }
}

impl SwapCosts {
    /// Seconds to move the state of this many tokens out of the cells, or back.
    pub fn seconds(&self, tokens: u32) -> f64 {
        self.seconds_per_token * f64::from(tokens)
    }

    /// Records a move.
    pub fn observe(&mut self, tokens: u32, seconds: f64) {
        if tokens > 0 && seconds.is_finite() {
            let newest = seconds / f64::from(tokens);
            let weight = MOVE_WEIGHT * (f64::from(tokens) / FULL_WEIGHT_TOKENS).min(1.0);
            self.seconds_per_token += weight * (newest - self.seconds_per_token);
        }
    }

    /// Forgets a little of a rate that stopped all moves: without moves nothing would correct it.
    pub fn decay(&mut self) {
        self.seconds_per_token += DECAY * (INITIAL_SECONDS - self.seconds_per_token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_follows_long_moves_and_decays() {
        let mut costs = SwapCosts::default();
        for _ in 0..50 {
            costs.observe(100, 0.1);
        }
        assert!((costs.seconds(1) - 1e-3).abs() < 1e-5);
        costs.observe(1, 1.0);
        assert!(costs.seconds(1) < 5e-3, "a short move counts little");
        costs.observe(10, f64::NAN);
        for _ in 0..1_000 {
            costs.decay();
        }
        assert!((costs.seconds(1) - INITIAL_SECONDS).abs() < 1e-8);
    }
}
