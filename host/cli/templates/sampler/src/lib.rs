//! A sampling plugin: draws from the `k` most likely tokens.

use corral_sdk::Token;
use corral_sdk::linked::{Sampler, SamplerContext, SamplerInput, SamplerNeeds};
use corral_sdk::sampling::{Candidates, SeedableRng, SeededRng};
use serde::Deserialize;

corral_sdk::sampling!(TopK);

/// Lives as long as one generation.
struct TopK {
    settings: Settings,
    rng: SeededRng,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    k: u32,
    temperature: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            k: 40,
            temperature: 0.8,
        }
    }
}

impl Sampler for TopK {
    fn start(context: SamplerContext) -> Result<Self, String> {
        let settings: Settings = context.parse_settings()?;
        if !(1..=4096).contains(&settings.k) {
            return Err(format!("`k` is {}; expected 1 to 4096", settings.k));
        }
        Ok(TopK {
            settings,
            rng: SeededRng::seed_from_u64(context.seed),
        })
    }

    fn needs(&self) -> SamplerNeeds {
        SamplerNeeds::candidates(self.settings.k)
    }

    fn sample(&mut self, input: SamplerInput) -> Result<Token, String> {
        Candidates::from(input.candidates)
            .temperature(self.settings.temperature)
            .sample(&mut self.rng)
            .ok_or_else(|| "there are no candidates".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::SamplerHarness;

    #[test]
    fn only_likely_tokens_are_drawn() {
        let mut sampler = SamplerHarness::<TopK>::start(r#"{"k": 2}"#, 1).unwrap();
        for _ in 0..100 {
            let token = sampler.sample(&[(7, 1.0), (8, 0.9), (9, 0.8)]).unwrap();
            assert_ne!(token, 9);
        }
    }

    #[test]
    fn wrong_settings_are_refused() {
        let error = SamplerHarness::<TopK>::start(r#"{"k": 0}"#, 1).err();
        assert_eq!(error.as_deref(), Some("`k` is 0; expected 1 to 4096"));
    }
}
