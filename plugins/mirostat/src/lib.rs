//! Mirostat 2 (Basu et al., 2021).

use corral_sdk::role::{Beginning, Needs, Sampler, Told};
use corral_sdk::sampling::{Candidates, Mirostat, Random};
use corral_sdk::{Token, sampling};
use serde::Deserialize;

/// As many of the likeliest as are looked at; the host tells at most so many.
const MOST: u32 = 4096;

sampling!(Plugin);

struct Plugin {
    mirostat: Mirostat,
    random: Random,
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

impl Sampler for Plugin {
    fn start(beginning: Beginning) -> Result<Self, String> {
        let Settings { tau, eta } = beginning.settings()?;
        for (name, value) in [("tau", tau), ("eta", eta)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!(
                    "`{name}` is {value}; expected a number of at least 0"
                ));
            }
        }
        Ok(Plugin {
            mirostat: Mirostat::new(tau, eta),
            random: Random::new(beginning.seed),
        })
    }

    fn needs(&self) -> Needs {
        Needs {
            statistics: true,
            ..Needs::candidates(MOST)
        }
    }

    fn sample(&mut self, told: Told) -> Result<Token, String> {
        let candidates = Candidates::from(told.candidates);
        let normalizer = told.statistics.map(|statistics| statistics.log_normalizer);
        self.mirostat
            .draw(candidates, normalizer, &mut self.random)
            .ok_or_else(|| "there is no candidate".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Bench;
    use std::collections::BTreeSet;

    /// So many tokens, each a little less likely than the one before.
    fn falling(count: u32, share: f32) -> Vec<(Token, f32)> {
        let logit = |token: u32| token as f32 * share.ln();
        (0..count).map(|token| (token, logit(token))).collect()
    }

    #[test]
    fn what_is_left_is_as_surprising_as_tau_says() {
        // Of tokens that are about as likely, it takes 2 to the power of `tau` for `tau` bits.
        let tokens = falling(200, 0.99);
        for (tau, least, most) in [(4, 12, 22), (5, 26, 42), (6, 54, 80)] {
            let settings = format!("{{\"tau\": {tau}, \"eta\": 0.1}}");
            let mut bench = Bench::<Plugin>::start(&settings, 1).unwrap();
            let drawn = (0..1000).map(|_| bench.sample(&tokens).unwrap());
            // The limit begins at twice `tau`, and comes down.
            let drawn: BTreeSet<_> = drawn.skip(300).collect();
            assert!(
                (least..=most).contains(&drawn.len()),
                "{tau}: {}",
                drawn.len()
            );
        }
    }

    #[test]
    fn a_tau_of_nothing_is_greedy() {
        let tokens = falling(50, 0.99);
        let mut bench = Bench::<Plugin>::start(r#"{"tau": 0}"#, 3).unwrap();
        for _ in 0..100 {
            assert_eq!(bench.sample(&tokens), Ok(0));
        }
    }

    #[test]
    fn it_asks_for_statistics_and_draws_the_same_with_the_same_seed() {
        let tokens = falling(5000, 0.999);
        let text = |seed| {
            let mut bench = Bench::<Plugin>::start("", seed).unwrap();
            [(); 20].map(|()| bench.sample(&tokens).unwrap())
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        let needs = Bench::<Plugin>::start("", 1).unwrap().needs();
        assert!(needs.statistics);
        assert_eq!(needs.candidates, 4096);
    }

    #[test]
    fn wrong_settings_are_refused_with_words() {
        for (settings, words) in [
            (
                r#"{"tau": -1}"#,
                "`tau` is -1; expected a number of at least 0",
            ),
            (r#"{"eta": 1e300}"#, "`eta` is inf"),
            (
                r#"{"mu": 1}"#,
                "unknown field `mu`, expected `tau` or `eta`",
            ),
            ("5", "the settings 5: invalid type: integer"),
        ] {
            let error = Bench::<Plugin>::start(settings, 1).err().unwrap();
            assert!(error.contains(words), "{settings}: {error}");
        }
    }
}
