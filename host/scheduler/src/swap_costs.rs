//! The cost of moving a sequence's state out of the cells and back, and when a move pays.
//!
//! The same move serves *swapping* retained sequences and preempted requests, and *offloading* prefixes that are
//! not retained. Its time is proportional to the tokens. The rate is learned from completed moves.
//!
//! Whether an offloaded prefix returns is unknown when it is offloaded. So the part of them that returned is learned, too:
//! if nearly none does, only those are offloaded that take very much longer to compute than to move.

/// Seconds for a token before the first move.
const INITIAL_SECONDS: f64 = 30e-6;
/// Weight of a move of [`FULL_WEIGHT_TOKENS`] or more in the mean. The time of a short move is mostly fixed costs.
const MOVE_WEIGHT: f64 = 0.2;
const FULL_WEIGHT_TOKENS: f64 = 64.0;
/// How far a higher rate returns to the initial one each time a prefix is dropped since moving it costs too much.
const DECAY: f64 = 0.02;
/// The part of offloaded prefixes that is expected to return before any did, and the weight of one in the mean.
const INITIAL_RETURNS: f64 = 0.5;
const RETURN_WEIGHT: f64 = 0.02;
/// How far a lower part returns to the initial one, as with [`DECAY`]. So few are offloaded while none returns.
const RETURNS_DECAY: f64 = 0.001;

/// The learned cost of moves.
#[derive(Clone, Debug)]
pub(crate) struct SwapCosts {
    seconds_per_token: f64,
    /// Seconds to compute a token of a prompt again.
    pub recompute_seconds_per_token: f64,
    /// The part of offloaded prefixes that is swapped in.
    returns: f64,
    /// Tokens of the longest prefix that can be offloaded, as far as is known.
    pub longest_prefix: u32,
}

impl Default for SwapCosts {
    fn default() -> Self {
        Self {
            seconds_per_token: INITIAL_SECONDS,
            // Anything pays until the cost is known.
            recompute_seconds_per_token: f64::MAX,
            returns: INITIAL_RETURNS,
            longest_prefix: u32::MAX,
        }
    }
}

impl SwapCosts {
    /// Seconds to move the state of this many tokens out of the cells, or back.
    pub fn seconds(&self, tokens: u32) -> f64 {
        self.seconds_per_token * f64::from(tokens)
    }

    /// Seconds to compute this many tokens again.
    pub fn recompute_seconds(&self, tokens: u32) -> f64 {
        self.recompute_seconds_per_token * f64::from(tokens)
    }

    /// Whether to offload a prefix that takes `recompute` seconds to compute: moving it out, and back if it returns, is
    /// expected to take less time than computing it if it returns.
    pub fn offload_pays(&self, tokens: u32, recompute: f64) -> bool {
        (1.0 + self.returns) * self.seconds(tokens) < self.returns * recompute
    }

    /// Records that a prefix is offloaded.
    pub fn observe_offload(&mut self) {
        self.returns -= RETURN_WEIGHT * self.returns;
    }

    /// Records that an offloaded prefix was swapped in.
    pub fn observe_return(&mut self) {
        self.returns = (self.returns + RETURN_WEIGHT).min(1.0);
    }

    /// Records a move.
    pub fn observe(&mut self, tokens: u32, seconds: f64) {
        if tokens > 0 && seconds.is_finite() {
            let newest = seconds / f64::from(tokens);
            let weight = MOVE_WEIGHT * (f64::from(tokens) / FULL_WEIGHT_TOKENS).min(1.0);
            self.seconds_per_token += weight * (newest - self.seconds_per_token);
        }
    }

    /// Forgets a little of what stopped all moves: without moves nothing would correct it.
    pub fn decay(&mut self) {
        self.seconds_per_token += DECAY * (INITIAL_SECONDS - self.seconds_per_token).min(0.0);
        self.returns += RETURNS_DECAY * (INITIAL_RETURNS - self.returns).max(0.0);
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

    #[test]
    fn slow_moves_keep_the_part_that_returns() {
        let mut costs = SwapCosts::default();
        (0..500).for_each(|_| costs.observe_return());
        (0..5_000).for_each(|_| costs.decay());
        assert!(costs.offload_pays(1, 2.5 * costs.seconds(1)));
    }

    #[test]
    fn prefixes_that_never_return_are_rarely_offloaded() {
        let mut costs = SwapCosts::default();
        // Computing takes ten times as long as a move.
        let mut offloads = |returning: bool| {
            let offloaded = (0..1_000).filter(|_| {
                let pays = costs.offload_pays(100, 10.0 * costs.seconds(100));
                match pays {
                    true => costs.observe_offload(),
                    false => costs.decay(),
                }
                if pays && returning {
                    costs.observe_return();
                }
                pays
            });
            offloaded.count()
        };
        assert_eq!(offloads(true), 1_000);
        assert!(offloads(false) < 300);
        assert!(offloads(true) > 900, "they return again");
    }
}
