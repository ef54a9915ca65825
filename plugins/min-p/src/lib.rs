//! Sampling plugin: min-p and temperature (Nguyen et al., 2024).

use corral_sdk::linked::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};
use corral_sdk::sampling::{Candidates, SeedableRng, SeededRng};
use corral_sdk::{Token, sampling};
use serde::Deserialize;

/// Number of candidates: the host's limit.
const CANDIDATES: u32 = 4096;

sampling!(MinP);

struct MinP {
    settings: Settings,
    rng: SeededRng,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    temperature: f32,
    min_p: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            temperature: 1.0,
            min_p: 0.05,
        }
    }
}

impl Sampler for MinP {
    fn start(context: SamplerContext) -> Result<Self, String> {
        let settings: Settings = context.parse_settings()?;
        let Settings { temperature, min_p } = settings;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(format!(
                "`temperature` is {temperature}; expected a number of at least 0"
            ));
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(format!("`min_p` is {min_p}; expected a number from 0 to 1"));
        }
        Ok(MinP {
            settings,
            rng: SeededRng::seed_from_u64(context.seed),
        })
    }

    fn needs(&self) -> SamplerNeeds {
        let greedy = self.settings.temperature == 0.0;
        SamplerNeeds::candidates(if greedy { 1 } else { CANDIDATES })
    }

    fn sample(&mut self, input: SamplerInput) -> Result<Token, String> {
        Candidates::from(input.candidates)
            .min_p(self.settings.min_p)
            .temperature(self.settings.temperature)
            .sample(&mut self.rng)
            .ok_or_else(|| "there are no candidates".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::SamplerHarness;
    use std::collections::BTreeSet;

    /// Tokens of probability 0.6, 0.3, 0.09 and 0.01.
    fn four() -> Vec<(Token, f32)> {
        let shares = [(11, 0.3f32), (10, 0.6), (13, 0.01), (12, 0.09)];
        shares.map(|(token, share)| (token, share.ln())).to_vec()
    }

    /// The tokens of many samples.
    fn sampled(settings: &str) -> BTreeSet<Token> {
        let mut harness = SamplerHarness::<MinP>::start(settings, 1).unwrap();
        (0..1000)
            .map(|_| harness.sample(&four()).unwrap())
            .collect()
    }

    #[test]
    fn unlikely_tokens_are_never_sampled() {
        for (settings, tokens) in [
            (r#"{"min_p": 0}"#, &[10, 11, 12, 13][..]),
            // 0.05 times 0.6 is 0.03.
            ("", &[10, 11, 12]),
            (r#"{"min_p": 0.4}"#, &[10, 11]),
            // Min-p applies before the temperature.
            (r#"{"min_p": 0.4, "temperature": 5}"#, &[10, 11]),
            (r#"{"min_p": 1}"#, &[10]),
            (r#"{"temperature": 0}"#, &[10]),
            (r#"{"temperature": 0, "min_p": 0}"#, &[10]),
        ] {
            let found = sampled(settings);
            assert_eq!(found, tokens.iter().copied().collect(), "{settings}");
        }
    }

    #[test]
    fn same_seed_gives_same_tokens() {
        let text = |seed| {
            let mut harness = SamplerHarness::<MinP>::start(r#"{"min_p": 0}"#, seed).unwrap();
            [(); 40].map(|()| harness.sample(&four()).unwrap())
        };
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn greedy_needs_one_candidate() {
        let needs = |settings| SamplerHarness::<MinP>::start(settings, 1).unwrap().needs();
        assert_eq!(needs(r#"{"temperature": 0}"#), SamplerNeeds::candidates(1));
        assert_eq!(needs(""), SamplerNeeds::candidates(4096));
    }

    #[test]
    fn wrong_settings_are_rejected() {
        for (settings, detail) in [
            (r#"{"temperature": -1}"#, "`temperature` is -1; expected"),
            (
                r#"{"min_p": 1.5}"#,
                "`min_p` is 1.5; expected a number from 0 to 1",
            ),
            (
                r#"{"minp": 0.1}"#,
                "unknown field `minp`, expected `temperature` or `min_p`",
            ),
            (r#"{"min_p": "x"}"#, "invalid type: string"),
            (r#"{"temperature": 1e300}"#, "`temperature` is inf"),
            ("min_p=0.1", "invalid settings min_p=0.1: expected value"),
            (
                "[]",
                "invalid settings []: invalid type: sequence, expected a map",
            ),
        ] {
            let error = SamplerHarness::<MinP>::start(settings, 1).err().unwrap();
            assert!(error.contains(detail), "{settings}: {error}");
        }
    }
}
