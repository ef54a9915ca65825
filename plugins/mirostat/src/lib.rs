//! Sampling plugin: Mirostat 2 (Basu et al., 2021).

use corral_sdk::linked::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};
use corral_sdk::sampling::{Candidates, Mirostat, SeedableRng, SeededRng};
use corral_sdk::{Token, sampling};
use serde::Deserialize;

/// Number of candidates: the host's limit.
const CANDIDATES: u32 = 4096;

sampling!(MirostatSampler);

struct MirostatSampler {
    mirostat: Mirostat,
    rng: SeededRng,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    tau: f32,
    eta: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { tau: 5.0, eta: 0.1 }
    }
}

impl Sampler for MirostatSampler {
    fn start(context: SamplerContext) -> Result<Self, String> {
        let Settings { tau, eta } = context.parse_settings()?;
        for (name, value) in [("tau", tau), ("eta", eta)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!(
                    "`{name}` is {value}; expected a number of at least 0"
                ));
            }
        }
        Ok(MirostatSampler {
            mirostat: Mirostat::new(tau, eta),
            rng: SeededRng::seed_from_u64(context.seed),
        })
    }

    fn needs(&self) -> SamplerNeeds {
        SamplerNeeds {
            statistics: true,
            ..SamplerNeeds::candidates(CANDIDATES)
        }
    }

    fn sample(&mut self, input: SamplerInput) -> Result<Token, String> {
        let candidates = Candidates::from(input.candidates);
        let normalizer = input.statistics.map(|statistics| statistics.log_normalizer);
        self.mirostat
            .sample(candidates, normalizer, &mut self.rng)
            .ok_or_else(|| "there are no candidates".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::SamplerHarness;
    use std::collections::BTreeSet;

    /// Tokens with probabilities that fall by the factor `ratio`.
    fn descending(count: u32, ratio: f32) -> Vec<(Token, f32)> {
        let logit = |token: u32| token as f32 * ratio.ln();
        (0..count).map(|token| (token, logit(token))).collect()
    }

    #[test]
    fn surprise_approaches_tau() {
        // With nearly equal probabilities, 2 to the power of `tau` tokens have a surprise of `tau` bits.
        let tokens = descending(200, 0.99);
        for (tau, least, most) in [(4, 12, 22), (5, 26, 42), (6, 54, 80)] {
            let settings = format!("{{\"tau\": {tau}, \"eta\": 0.1}}");
            let mut harness = SamplerHarness::<MirostatSampler>::start(&settings, 1).unwrap();
            let drawn = (0..1000).map(|_| harness.sample(&tokens).unwrap());
            // The limit starts at twice `tau` and falls.
            let drawn: BTreeSet<_> = drawn.skip(300).collect();
            let count = drawn.len();
            assert!((least..=most).contains(&count), "{tau}: {count}");
        }
    }

    #[test]
    fn zero_tau_is_greedy() {
        let tokens = descending(50, 0.99);
        let mut harness = SamplerHarness::<MirostatSampler>::start(r#"{"tau": 0}"#, 3).unwrap();
        for _ in 0..100 {
            assert_eq!(harness.sample(&tokens), Ok(0));
        }
    }

    #[test]
    fn same_seed_gives_same_tokens() {
        let tokens = descending(5000, 0.999);
        let text = |seed| {
            let mut harness = SamplerHarness::<MirostatSampler>::start("", seed).unwrap();
            [(); 20].map(|()| harness.sample(&tokens).unwrap())
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        let needs = SamplerHarness::<MirostatSampler>::start("", 1)
            .unwrap()
            .needs();
        assert!(needs.statistics);
        assert_eq!(needs.candidates, 4096);
    }

    #[test]
    fn wrong_settings_are_rejected() {
        for (settings, detail) in [
            (
                r#"{"tau": -1}"#,
                "`tau` is -1; expected a number of at least 0",
            ),
            (r#"{"eta": 1e300}"#, "`eta` is inf"),
            (
                r#"{"mu": 1}"#,
                "unknown field `mu`, expected `tau` or `eta`",
            ),
            ("5", "invalid settings 5: invalid type: integer"),
        ] {
            let error = SamplerHarness::<MirostatSampler>::start(settings, 1).err();
            let error = error.unwrap();
            assert!(error.contains(detail), "{settings}: {error}");
        }
    }
}
