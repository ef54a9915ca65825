//! Temperature and min-p (Nguyen et al., 2024).

use corral_sdk::role::{Beginning, Needs, Sampler, Told};
use corral_sdk::sampling::{Candidates, Random};
use corral_sdk::{Token, sampling};
use serde::Deserialize;

/// As many of the likeliest as are looked at; the host tells at most so many.
const MOST: u32 = 4096;

sampling!(MinP);

struct MinP {
    settings: Settings,
    random: Random,
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
    fn start(beginning: Beginning) -> Result<Self, String> {
        let settings: Settings = beginning.settings()?;
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
            random: Random::new(beginning.seed),
        })
    }

    fn needs(&self) -> Needs {
        let greedy = self.settings.temperature == 0.0;
        Needs::candidates(if greedy { 1 } else { MOST })
    }

    fn sample(&mut self, told: Told) -> Result<Token, String> {
        Candidates::from(told.candidates)
            .min_p(self.settings.min_p)
            .temperature(self.settings.temperature)
            .draw(&mut self.random)
            .ok_or_else(|| "there is no candidate".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Bench;
    use std::collections::BTreeSet;

    /// Of probability 0.6, 0.3, 0.09 and 0.01.
    fn four() -> Vec<(Token, f32)> {
        let shares = [(11, 0.3f32), (10, 0.6), (13, 0.01), (12, 0.09)];
        shares.map(|(token, share)| (token, share.ln())).to_vec()
    }

    /// All that comes of many draws.
    fn drawn(settings: &str) -> BTreeSet<Token> {
        let mut bench = Bench::<MinP>::start(settings, 1).unwrap();
        (0..1000).map(|_| bench.sample(&four()).unwrap()).collect()
    }

    #[test]
    fn what_is_too_unlikely_never_comes() {
        for (settings, tokens) in [
            (r#"{"min_p": 0}"#, &[10, 11, 12, 13][..]),
            // 0.05 of the likeliest is 0.03.
            ("", &[10, 11, 12]),
            (r#"{"min_p": 0.4}"#, &[10, 11]),
            // It is min-p's share of what the model said, whatever the temperature.
            (r#"{"min_p": 0.4, "temperature": 5}"#, &[10, 11]),
            (r#"{"min_p": 1}"#, &[10]),
            (r#"{"temperature": 0}"#, &[10]),
            (r#"{"temperature": 0, "min_p": 0}"#, &[10]),
        ] {
            assert_eq!(
                drawn(settings),
                tokens.iter().copied().collect(),
                "{settings}"
            );
        }
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let text = |seed| {
            let mut bench = Bench::<MinP>::start(r#"{"min_p": 0}"#, seed).unwrap();
            [(); 40].map(|()| bench.sample(&four()).unwrap())
        };
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn greedy_asks_for_one_candidate() {
        let needs = |settings| Bench::<MinP>::start(settings, 1).unwrap().needs();
        assert_eq!(needs(r#"{"temperature": 0}"#), Needs::candidates(1));
        assert_eq!(needs(""), Needs::candidates(4096));
    }

    #[test]
    fn wrong_settings_are_refused_with_words() {
        for (settings, words) in [
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
            ("min_p=0.1", "the settings min_p=0.1: expected value"),
            (
                "[]",
                "the settings []: invalid type: sequence, expected a map",
            ),
        ] {
            let error = Bench::<MinP>::start(settings, 1).err().unwrap();
            assert!(error.contains(words), "{settings}: {error}");
        }
    }
}
