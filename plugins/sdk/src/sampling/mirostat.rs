//! Mirostat 2 (Basu et al., 2021).

use super::{Candidates, Random};
use crate::Token;

/// Keeps the surprise of a text near `tau` bits: leaves out what is more surprising than a limit, draws,
/// and moves the limit by `eta` times how far the drawn token was from `tau`. As llama.cpp does it, the
/// surprise is that among what was left.
#[derive(Debug, Clone)]
pub struct Mirostat {
    tau: f32,
    eta: f32,
    /// The limit, in bits.
    limit: f64,
}

impl Mirostat {
    /// At the beginning of a text; the limit begins at twice `tau`.
    pub fn new(tau: f32, eta: f32) -> Self {
        let limit = 2.0 * f64::from(tau);
        Mirostat { tau, eta, limit }
    }

    /// Draws a token, and learns of it; nothing if there is no candidate. `log_normalizer` is that of the
    /// whole distribution, if it is known; without it what is not among the candidates counts as
    /// impossible.
    pub fn draw(
        &mut self,
        candidates: Candidates,
        log_normalizer: Option<f32>,
        random: &mut Random,
    ) -> Option<Token> {
        let best = candidates.list().first()?.logit;
        let log_normalizer = match log_normalizer {
            Some(known) => f64::from(known),
            // The best one's share says how much there is in all.
            None => f64::from(best) - candidates.probabilities().first()?.ln(),
        };
        let surprise = |logit: f32| (log_normalizer - f64::from(logit)) / std::f64::consts::LN_2;
        let within = candidates.list().iter();
        let within = within.take_while(|one| surprise(one.logit) <= self.limit);
        let kept = within.count().max(1);
        let candidates = candidates.top_k(kept);

        let token = candidates.draw(random)?;
        let at = candidates
            .list()
            .iter()
            .position(|one| one.token == token)?;
        let found = -candidates.probabilities()[at].log2();
        self.limit -= f64::from(self.eta) * (found - f64::from(self.tau));
        Some(token)
    }

    /// The limit of surprise, in bits.
    pub fn limit(&self) -> f64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Candidate;

    /// Tokens of probability 1/2, 1/4, 1/8 and 1/8: surprises of 1, 2, 3 and 3 bits.
    fn four() -> Candidates {
        let list = [(0, 0.5f32), (1, 0.25), (2, 0.125), (3, 0.125)];
        let list = list.map(|(token, share)| Candidate {
            token,
            logit: share.ln(),
        });
        list.to_vec().into()
    }

    #[test]
    fn the_limit_follows_the_surprise() {
        // A limit of 1 bit leaves the first token, which is then no surprise at all: 0 bits, half a bit
        // under tau, so the limit rises by 0.2 times 0.5.
        let mut mirostat = Mirostat::new(0.5, 0.2);
        let token = mirostat.draw(four(), None, &mut Random::new(1));
        assert_eq!(token, Some(0));
        assert!(
            (mirostat.limit() - 1.1).abs() < 1e-6,
            "{}",
            mirostat.limit()
        );
    }

    #[test]
    fn a_limit_of_two_bits_leaves_two_tokens() {
        // Of 1/2 and 1/4 the shares are 2/3 and 1/3: 0.585 and 1.585 bits.
        let mut seen = [false; 4];
        for seed in 0..100 {
            let mut mirostat = Mirostat::new(1.001, 1.0);
            let token = mirostat.draw(four(), None, &mut Random::new(seed)).unwrap();
            let found = if token == 0 { 0.584_963 } else { 1.584_963 };
            let expected = 2.002 - (found - 1.001);
            assert!((mirostat.limit() - expected).abs() < 1e-5);
            seen[token as usize] = true;
        }
        assert_eq!(seen, [true, true, false, false]);
    }

    #[test]
    fn the_rest_of_the_distribution_counts_if_it_is_known() {
        // Half of the probability lies elsewhere: each token is a bit more surprising.
        let half = Some(std::f32::consts::LN_2);
        let mut mirostat = Mirostat::new(1.0, 0.0);
        for seed in 0..50 {
            let token = mirostat.draw(four(), half, &mut Random::new(seed));
            assert_eq!(token, Some(0));
        }
    }

    #[test]
    fn one_is_always_left() {
        let mut mirostat = Mirostat::new(0.0, 0.1);
        let token = mirostat.draw(four(), None, &mut Random::new(1));
        assert_eq!(token, Some(0));
        let none = mirostat.draw(Candidates::default(), None, &mut Random::new(1));
        assert_eq!(none, None);
    }
}
