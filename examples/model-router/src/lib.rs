//! Routes each prompt to the cheapest model that is sure of its answer. The deployment lists its models from cheap to
//! expensive; a model whose least likely token has a probability below `threshold` passes the prompt on.

use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(route);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteRequest {
    prompt: String,
    #[serde(default = "default_threshold")]
    threshold: f32,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_threshold() -> f32 {
    0.5
}

fn default_max_tokens() -> u32 {
    64
}

async fn route(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: RouteRequest = request.json().await?;
    let models = Model::available();
    let mut tried = Vec::new();
    for (index, name) in models.iter().enumerate() {
        let is_last = index + 1 == models.len();
        let (text, confidence) = answer(name, &body, is_last).await?;
        tried.push(json!({"model": name, "confidence": confidence}));
        if is_last || confidence >= body.threshold {
            return Ok(Response::json(
                &json!({"model": name, "text": text, "tried": tried}),
            ));
        }
    }
    Err(Error::new(503, "no-models", "the deployment has no models"))
}

/// The model's answer and the probability of its least likely token. Unless it `finishes`, the generation is cancelled
/// at the first token below the threshold, so that a wrong model costs little.
async fn answer(name: &str, body: &RouteRequest, finishes: bool) -> Result<(String, f32), Error> {
    let sequence = Model::open(name).await?.sequence()?;
    sequence.append(&body.prompt)?;
    let options = GenerateOptions::new(body.max_tokens).logprobs(0);
    let mut generation = sequence.generate(&options)?;
    let (mut text, mut confidence) = (String::new(), 1.0_f32);
    while let Some(chunk) = generation.next().await {
        text += &chunk.text;
        let probabilities = chunk.logprobs.iter().map(|token| token.logprob.exp());
        confidence = probabilities.fold(confidence, f32::min);
        if confidence < body.threshold && !finishes {
            return Ok((text, confidence));
        }
    }
    generation.outcome().await?;
    Ok((text, confidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};
    use serde_json::Value;

    fn ask(large: &Script, body: Value) -> (u16, Value) {
        let script = Script::new()
            .info(|info| info.name = "small".to_owned())
            .other_model(large)
            .answers("12+7=", "19")
            .next("Hamlet?", &[("B", 1.0), ("S", 1.0), ("M", 1.0)])
            .answers("Hamlet?B", "acon");
        script.post(route, &body)
    }

    fn large() -> Script {
        let script = Script::new().info(|info| info.name = "large".to_owned());
        script.answers("Hamlet?", "Shakespeare")
    }

    #[test]
    fn sure_model_answers_alone() {
        let large = large();
        let (status, body) = ask(&large, json!({"prompt": "12+7="}));
        assert_eq!(status, 200);
        assert_eq!(body["model"], "small");
        assert_eq!(body["text"], "19");
        assert_eq!(large.calls(), [] as [HostCall; 0]);
    }

    #[test]
    fn unsure_model_passes_the_prompt_on() {
        let large = large();
        let (_, body) = ask(&large, json!({"prompt": "Hamlet?"}));
        assert_eq!(body["model"], "large");
        assert_eq!(body["text"], "Shakespeare");
        let found = body["tried"][0]["confidence"].as_f64().unwrap();
        assert!(found < 0.34, "{body}");
        assert_eq!(large.generations().len(), 1);
        let (_, body) = ask(&large, json!({"prompt": "Hamlet?", "threshold": 0.3}));
        assert_eq!(body["model"], "small");
        assert_eq!(body["text"], "Bacon");
    }
}
