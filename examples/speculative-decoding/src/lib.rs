//! Speculative decoding: a small model drafts tokens, and the large one verifies them together. The text is the
//! one that the large model generates alone, always taking the most likely token.

use corral_sdk::{
    Error, GenerateOptions, Model, NextTokenRequest, Request, Response, Sequence, Token, next_many,
};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// Tokens that the small model drafts for a verification, from 0 to 8.
    #[serde(default = "default_drafts")]
    drafts: u32,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_drafts() -> u32 {
    2
}

fn default_max_tokens() -> u32 {
    64
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&decode(request.json().await?).await?))
}

async fn decode(body: Body) -> Result<Value, Error> {
    if body.drafts > 8 {
        let detail = format!("`drafts` is {}; expected 0 to 8", body.drafts);
        return Err(Error::bad_request("invalid-drafts", detail));
    }
    let (large, small) = open_models(&body.prompt).await?;
    let mut text = large.sequence()?;
    text.append(&body.prompt)?;
    let start = text.len();
    let drafting = small.empty_sequence()?;
    drafting.append_tokens(&text.tokens(0))?;
    let (mut verifications, mut drafted, mut accepted) = (0, 0, 0);
    while text.len() - start < body.max_tokens {
        // A verification adds a token of its own. The first one has no drafts: each would compute the prompt again.
        let left = body.max_tokens - (text.len() - start) - 1;
        let drafts = match verifications {
            0 => Vec::new(),
            _ => draft(&drafting, body.drafts.min(left)).await?,
        };
        let before = text.len();
        let token;
        (text, token) = verify(text, &drafts).await?;
        verifications += 1;
        drafted += drafts.len();
        accepted += text.len() - before;
        if large.is_end_of_generation(token) {
            break;
        }
        // Removes the rejected drafts.
        drafting.truncate(text.len())?;
        for sequence in [&text, &drafting] {
            sequence.append_tokens(&[token])?;
        }
    }
    Ok(json!({
        "text": text.text(start)?,
        "tokens": text.len() - start,
        "verifications": verifications,
        "drafted": drafted,
        "accepted": accepted,
    }))
}

/// The large and the small model: the first two of the deployment.
async fn open_models(prompt: &str) -> Result<(Model, Model), Error> {
    let names = Model::available();
    let [large, small, ..] = &names[..] else {
        let detail =
            format!("the deployment has the models {names:?}; expected a large and a small one");
        return Err(Error::new(503, "no-draft-model", detail));
    };
    let (large, small) = (Model::open(large).await?, Model::open(small).await?);
    if large.tokenize(prompt)? != small.tokenize(prompt)? {
        let detail = "the two models have different tokens; use models of one family";
        return Err(Error::new(503, "unsuitable-draft-model", detail));
    }
    Ok((large, small))
}

/// The next tokens of the small model, up to the end of its text.
async fn draft(sequence: &Sequence, count: u32) -> Result<Vec<Token>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut generation = sequence.generate(&GenerateOptions::new(count))?;
    let mut drafts = generation.rest().await?.tokens;
    generation.outcome().await?;
    // The large model says itself where the text ends.
    drafts.retain(|&token| !sequence.model().is_end_of_generation(token));
    Ok(drafts)
}

/// Returns the sequence with the drafts that the large model chooses, too, and the token that it chooses after them.
async fn verify(sequence: Sequence, drafts: &[Token]) -> Result<(Sequence, Token), Error> {
    // Each sequence has one draft more than the one before it.
    let mut sequences = vec![sequence];
    for (count, &draft) in drafts.iter().enumerate() {
        let longer = sequences[count].fork()?;
        longer.append_tokens(&[draft])?;
        sequences.push(longer);
    }
    let requests = sequences
        .iter()
        .map(|sequence| (sequence, NextTokenRequest::top(1)));
    let mut chosen = Vec::new();
    for distribution in next_many(requests).await {
        let token = distribution?.most_likely();
        chosen.push(token.ok_or(Error::Failed("the host returned no token".to_owned()))?);
    }
    let pairs = drafts.iter().zip(&chosen);
    let accepted = pairs.take_while(|(draft, chosen)| draft == chosen).count();
    Ok((sequences.swap_remove(accepted), chosen[accepted]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};

    const DIGITS: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];

    /// Asks a large model that counts to nine. The small one counts, too, but writes an x after the digits in `wrong`.
    /// Returns the status, the body, and the texts that the large model continued.
    fn ask(wrong: &str, body: Value) -> (u16, Value, Vec<String>) {
        let mut small = Script::new().info(|info| info.name = "small".to_owned());
        small = small.next("x", &[("x", 1.0)]);
        for (index, digit) in DIGITS.iter().enumerate() {
            let next = DIGITS.get(index + 1).unwrap_or(&"<|im_end|>");
            let next = if wrong.contains(digit) { "x" } else { next };
            small = small.next(digit, &[(next, 1.0)]);
        }
        let script = Script::new()
            .answers("?", &DIGITS.concat())
            .next("x", &[("x", 1.0)])
            .other_model(&small);
        let (status, body) = script.post(handle, &body);
        let verified = script.calls().into_iter().filter_map(|call| match call {
            HostCall::Next(text) => Some(text),
            _ => None,
        });
        (status, body, verified.collect())
    }

    #[test]
    fn accepted_drafts_save_verifications() {
        let (_, answer, verified) = ask("", json!({"prompt": "?", "drafts": 3}));
        // "1" with the prompt, then "2345" and "6789", then the end.
        assert_eq!(
            answer,
            json!({"text": "123456789", "tokens": 9, "verifications": 4, "drafted": 6, "accepted": 6})
        );
        assert_eq!(verified[..5], ["?", "?1", "?12", "?123", "?1234"]);
    }

    #[test]
    fn wrong_drafts_do_not_change_the_text() {
        let (_, answer, _) = ask("26", json!({"prompt": "?", "drafts": 2}));
        // "1", then "2" and "3" for "2x", then "456", then "7" for "xx", then "89" and the end.
        assert_eq!(
            answer,
            json!({"text": "123456789", "tokens": 9, "verifications": 5, "drafted": 8, "accepted": 5})
        );
    }

    #[test]
    fn length_limit_holds_with_drafts() {
        for max_tokens in 0..9 {
            let body = json!({"prompt": "?", "drafts": 4, "max_tokens": max_tokens});
            let (_, answer, _) = ask("", body);
            assert_eq!(answer["tokens"], max_tokens);
            assert_eq!(answer["text"], "123456789"[..max_tokens]);
        }
    }

    #[test]
    fn each_token_is_verified_without_drafts() {
        let (_, answer, verified) = ask("", json!({"prompt": "?", "drafts": 0}));
        assert_eq!((&answer["verifications"], verified.len()), (&json!(10), 10));
    }

    #[test]
    fn unsuitable_requests_are_refused() {
        let (status, answer, _) = ask("", json!({"prompt": "?", "drafts": 9}));
        assert_eq!((status, &answer["code"]), (400, &json!("invalid-drafts")));
        let alone = Script::new().answers("?", "1");
        let opened = alone.run(open_models("?"));
        let error = opened.map(|_| ()).unwrap_err();
        assert_eq!((error.status(), error.code()), (503, "no-draft-model"));
    }
}
