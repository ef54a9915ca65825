//! Mirostat 2 (Basu et al., 2021).

use super::{Candidates, Rng};
use crate::Token;

/// Keeps the surprise of a text near `tau` bits: drops candidates more surprising than `mu`, draws
/// a token, and moves `mu` by `eta` times the difference between the token's surprise and `tau`. As
/// in llama.cpp, the surprise is relative to the remaining candidates.
#[derive(Debug, Clone)]
pub struct Mirostat {
    tau: f32,
    eta: f32,
    /// The limit of surprise, in bits.
    mu: f64,
}

impl Mirostat {
    /// Starts a generation with `mu` at twice `tau`.
    pub fn new(tau: f32, eta: f32) -> Self {
        let mu = 2.0 * f64::from(tau);
        Mirostat { tau, eta, mu }
    }

    /// Draws a token and updates `mu`; `None` if there is no candidate. Without `log_normalizer`,
    /// the one of the whole distribution, tokens that are not candidates count as impossible.
    pub fn sample(
        &mut self,
        candidates: Candidates,
        log_normalizer: Option<f32>,
        rng: &mut impl Rng,
    ) -> Option<Token> {
        let best = candidates.as_slice().first()?.logit;
        let log_normalizer = match log_normalizer {
            Some(known) => f64::from(known),
            // The best candidate's probability gives the normalizer.
            None => f64::from(best) - candidates.probabilities().first()?.ln(),
        };
        let surprise = |logit: f32| (log_normalizer - f64::from(logit)) / std::f64::consts::LN_2;
        let within = candidates.as_slice().iter();
        let within = within.take_while(|one| surprise(one.logit) <= self.mu);
        let kept = within.count().max(1);
        let candidates = candidates.top_k(kept);

        let token = candidates.sample(rng)?;
        let at = candidates
            .as_slice()
            .iter()
            .position(|one| one.token == token)?;
        let surprise = -candidates.probabilities()[at].log2();
        self.mu -= f64::from(self.eta) * (surprise - f64::from(self.tau));
        Some(token)
    }

    /// The current limit of surprise, in bits.
    pub fn mu(&self) -> f64 {
        self.mu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Candidate;
    use crate::sampling::{SeedableRng, SeededRng};

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
    fn mu_follows_the_surprise() {
        // At a limit of 1 bit only the first token remains, with a surprise of 0 bits. That is half
        // a bit below tau, so the limit rises by 0.2 times 0.5.
        let mut mirostat = Mirostat::new(0.5, 0.2);
        let token = mirostat.sample(four(), None, &mut SeededRng::seed_from_u64(1));
        assert_eq!(token, Some(0));
        assert!((mirostat.mu() - 1.1).abs() < 1e-6, "{}", mirostat.mu());
    }

    #[test]
    fn two_bits_keep_two_tokens() {
        // With 1/2 and 1/4 left, the probabilities are 2/3 and 1/3: 0.585 and 1.585 bits.
        let mut seen = [false; 4];
        for seed in 0..100 {
            let mut mirostat = Mirostat::new(1.001, 1.0);
            let token = mirostat.sample(four(), None, &mut SeededRng::seed_from_u64(seed));
            let token = token.unwrap();
            let found = if token == 0 { 0.584_963 } else { 1.584_963 };
            let expected = 2.002 - (found - 1.001);
            assert!((mirostat.mu() - expected).abs() < 1e-5);
            seen[token as usize] = true;
        }
        assert_eq!(seen, [true, true, false, false]);
    }

    #[test]
    fn log_normalizer_covers_the_whole_distribution() {
        // Half of the probability lies elsewhere, so each token is one bit more surprising.
        let half = Some(std::f32::consts::LN_2);
        let mut mirostat = Mirostat::new(1.0, 0.0);
        for seed in 0..50 {
            let token = mirostat.sample(four(), half, &mut SeededRng::seed_from_u64(seed));
            assert_eq!(token, Some(0));
        }
    }

    #[test]
    fn one_token_always_remains() {
        let mut mirostat = Mirostat::new(0.0, 0.1);
        let token = mirostat.sample(four(), None, &mut SeededRng::seed_from_u64(1));
        assert_eq!(token, Some(0));
        let none = mirostat.sample(
            Candidates::default(),
            None,
            &mut SeededRng::seed_from_u64(1),
        );
        assert_eq!(none, None);
    }
}
