//! Text that matches a regular expression. The host masks tokens that cannot lead to a match, and computes text that
//! the expression leaves no choice about in one step, without sampling.

use corral_sdk::{Constraint, Error, Finish, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(guided);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuidedRequest {
    prompt: String,
    /// Matches the whole text: the syntax of Rust's `regex`, without anchors.
    regex: String,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_max_tokens() -> u32 {
    128
}

async fn guided(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: GuidedRequest = request.json().await?;
    let model = Model::open_default().await?;
    // The host caches compiled expressions.
    let regex = Constraint::regex(&model, &body.regex).await?;
    let sequence = model.sequence()?;
    sequence.append(&body.prompt)?;
    let options = GenerateOptions::new(body.max_tokens).constrain(&regex);
    let (text, outcome) = sequence.generate(&options)?.text_and_outcome().await?;
    Ok(Response::json(&json!({
        "text": text,
        // False if `max_tokens` cut the text before its end.
        "matches": outcome.finish == Finish::End,
        "tokens": outcome.generated_tokens,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn ask(body: Value) -> (u16, Value) {
        let script = Script::new()
            .grammar("[0-9]{2}", &["19", "20"])
            .next("12+7=", &[("n", 2.0), ("1", 1.0)])
            .next("12+7=1", &[("n", 2.0), ("9", 1.0)])
            .answers("12+7=19", "");
        script.post(guided, &body)
    }

    #[test]
    fn text_matches_the_expression() {
        let (status, body) = ask(json!({"prompt": "12+7=", "regex": "[0-9]{2}"}));
        assert_eq!(status, 200);
        assert_eq!(body, json!({"text": "19", "matches": true, "tokens": 3}));
        let (_, body) = ask(json!({"prompt": "12+7=", "regex": "[0-9]{2}", "max_tokens": 1}));
        assert_eq!(body["text"], "1");
        assert_eq!(body["matches"], false);
    }

    #[test]
    fn wrong_expression_is_400() {
        let (status, body) = ask(json!({"prompt": "12+7=", "regex": "["}));
        assert_eq!((status, &body["code"]), (400, &json!("invalid")), "{body}");
    }
}
