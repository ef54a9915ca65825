//! Samples several answers to one prompt and returns the one that the model finds most likely.

use corral_sdk::{Command, Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// The number of answers, from 1 to 64.
    #[serde(default = "default_n")]
    n: u32,
    #[serde(default = "default_temperature")]
    temperature: f32,
    /// The answers have this seed and the following ones.
    #[serde(default)]
    seed: u64,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether to go on after the model's end token, to `max_tokens`.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_n() -> u32 {
    8
}

fn default_temperature() -> f32 {
    1.0
}

fn default_max_tokens() -> u32 {
    64
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&best_of(request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = best_of(command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

async fn best_of(body: Body) -> Result<Value, Error> {
    if !(1..=64).contains(&body.n) {
        let detail = format!("`n` is {}; expected 1 to 64", body.n);
        return Err(Error::bad_request("invalid-n", detail));
    }
    let prompt = Model::open_default().await?.sequence()?;
    prompt.append(&body.prompt)?;
    // All generations start before the first is read, so that they share steps. They are forks of
    // one sequence: the host computes the prompt once.
    let mut generations = Vec::new();
    for index in 0..u64::from(body.n) {
        let mut options = GenerateOptions::new(body.max_tokens)
            .temperature(body.temperature)
            .seed(body.seed.wrapping_add(index))
            .logprobs(0);
        if body.ignore_eos {
            options = options.ignore_eos();
        }
        generations.push(prompt.fork()?.generate(&options)?);
    }
    let (mut answers, mut computed) = (Vec::new(), 0);
    for mut generation in generations {
        let all = generation.rest().await?;
        let outcome = generation.outcome().await?;
        computed += outcome.prompt_tokens - outcome.cached_tokens;
        let sum: f32 = all.logprobs.iter().map(|token| token.logprob).sum();
        answers.push((all.text, sum / outcome.generated_tokens as f32));
    }
    // Of equal answers the first.
    answers.sort_by(|one, other| other.1.total_cmp(&one.1));
    let answers = answers
        .iter()
        .map(|(text, mean)| json!({"text": text, "mean_logprob": rounded(*mean)}));
    let answers: Vec<_> = answers.collect();
    Ok(json!({
        "text": answers[0]["text"],
        "prompt_tokens": prompt.len(),
        "prompt_tokens_computed": computed,
        "answers": answers,
    }))
}

/// Three decimals.
fn rounded(value: f32) -> f64 {
    // Adding 0 turns -0 into 0.
    (f64::from(value) * 1000.0).round() / 1000.0 + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};

    #[test]
    fn every_fork_has_its_own_seed() {
        let script = Script::new().answers("12+7=", "19");
        let body = json!({"prompt": "12+7=", "n": 3, "seed": 5, "max_tokens": 4});
        let (status, answer) = script.post(handle, &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["text"], "19");
        assert_eq!(answer["answers"].as_array().unwrap().len(), 3);
        let generations = script.generations();
        assert_eq!(generations.len(), 3);
        for (generation, seed) in generations.iter().zip(5..) {
            assert_eq!(generation.after, "12+7=");
            let seed = format!("seed {seed}");
            assert!(generation.settings.contains(&seed), "{generation:?}");
        }
    }

    #[test]
    fn failed_answer_cancels_the_others() {
        let script = Script::new().fails_after("1+1=", "2", Error::Deadline);
        let (status, _) = script.post(handle, &json!({"prompt": "1+1=", "n": 2}));
        assert_eq!(status, 504);
        assert_eq!(script.calls().last(), Some(&HostCall::Cancelled));
    }

    #[test]
    fn end_is_ignored_on_request() {
        for ignore_eos in [false, true] {
            let script = Script::new().answers("12+7=", "19");
            let body = json!({"prompt": "12+7=", "n": 1, "ignore_eos": ignore_eos});
            // The script has nothing after the end.
            let expected = if ignore_eos { 500 } else { 200 };
            assert_eq!(script.post(handle, &body).0, expected);
            let settings = &script.generations()[0].settings;
            let found = settings.iter().any(|setting| setting == "ignore-eos");
            assert_eq!(found, ignore_eos);
        }
    }

    #[test]
    fn count_out_of_range_is_refused() {
        for n in [0, 65] {
            let (status, body) = Script::new().post(handle, &json!({"prompt": "1+1=", "n": n}));
            assert_eq!(status, 400);
            assert!(body.to_string().contains("expected 1 to 64"), "{body}");
        }
    }
}
