//! Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each
//! distribution and chooses the token itself.

use corral_sdk::sampling::{Candidates, SeedableRng, SeededRng};
use corral_sdk::{Command, Distribution, Error, Model, NextTokenRequest, Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

/// The most likely tokens among which to choose.
const CANDIDATES: u32 = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// From 0 to 1: the larger, the fewer tokens remain.
    #[serde(default = "default_epsilon")]
    epsilon: f32,
    #[serde(default = "default_temperature")]
    temperature: f32,
    #[serde(default)]
    seed: u64,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_epsilon() -> f32 {
    0.002
}

fn default_temperature() -> f32 {
    1.0
}

fn default_max_tokens() -> u32 {
    64
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&generate(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = generate(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn generate(body: Body) -> Result<Value, Error> {
    if !(0.0..=1.0).contains(&body.epsilon) {
        let detail = format!("`epsilon` is {}; expected 0 to 1", body.epsilon);
        return Err(Error::bad_request("invalid-epsilon", detail));
    }
    let model = Model::open_default().await?;
    let sequence = model.sequence()?;
    sequence.append(&body.prompt)?;
    let start = sequence.len();
    let mut rng = SeededRng::seed_from_u64(body.seed);
    let (mut requests, mut considered) = (0, 0);
    while sequence.len() - start < body.max_tokens {
        let request = NextTokenRequest::top(CANDIDATES).with_statistics();
        let candidates = eta(&sequence.next(request).await?, body.epsilon);
        requests += 1;
        considered += candidates.as_slice().len();
        match candidates.temperature(body.temperature).sample(&mut rng) {
            Some(token) if !model.is_end_of_generation(token) => {
                sequence.append_tokens(&[token])?;
            }
            _ => break,
        }
    }
    Ok(json!({
        "text": sequence.text(start)?,
        "distributions": requests,
        "considered_tokens": considered,
    }))
}

/// Drops tokens that are unlikely by themselves (`epsilon`) and for a distribution of this entropy.
/// Keeps the most likely token.
fn eta(distribution: &Distribution, epsilon: f32) -> Candidates {
    let entropy = distribution.statistics.map_or(0.0, |all| all.entropy);
    let least = epsilon.min(epsilon.sqrt() * (-entropy).exp()).ln();
    let best = distribution.most_likely();
    let likely = distribution.candidates.iter().filter(|candidate| {
        let logprob = distribution.logprob(candidate.token);
        Some(candidate.token) == best || logprob.is_some_and(|logprob| logprob >= least)
    });
    likely.copied().collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// Probabilities of about 0.66, 0.24, 0.09 and 0.002, and an entropy of about 0.85.
    const NEXT: [(&str, f32); 4] = [("a", 6.0), ("b", 5.0), ("c", 4.0), ("d", 0.0)];

    fn script() -> Script {
        ["a", "b", "c", "d"]
            .iter()
            .fold(Script::new().next("?", &NEXT), |script, letter| {
                script.next(letter, &[("<|im_end|>", 1.0)])
            })
    }

    fn ask(epsilon: f32, seed: u64) -> Value {
        let body = json!({"prompt": "?", "epsilon": epsilon, "seed": seed, "temperature": 2});
        let body = serde_json::from_value(body).unwrap();
        script().run(generate(body)).unwrap()
    }

    #[test]
    fn epsilon_limits_the_candidates() {
        // The end token, whose distribution has no others, adds one.
        let all = 2 * u64::from(CANDIDATES);
        for (epsilon, considered) in [(0.0, all), (0.001, 5), (0.01, 4), (0.3, 3), (1.0, 2)] {
            let found = &ask(epsilon, 1)["considered_tokens"];
            assert_eq!(*found, considered, "{epsilon}");
        }
    }

    #[test]
    fn seeds_choose_among_them() {
        let texts: Vec<_> = (0..40)
            .map(|seed| ask(0.01, seed)["text"].clone())
            .collect();
        for letter in ["a", "b", "c"] {
            assert!(texts.contains(&json!(letter)), "{letter}");
        }
        assert!(!texts.contains(&json!("d")));
        assert_eq!(ask(1.0, 3)["text"], "a");
    }

    #[test]
    fn wrong_epsilon_is_refused() {
        let body = serde_json::from_value(json!({"prompt": "?", "epsilon": 2})).unwrap();
        let error = script().run(generate(body)).unwrap_err();
        assert_eq!((error.status(), error.code()), (400, "invalid-epsilon"));
    }
}
