//! Watermarks generated text and detects the watermark (Kirchenbauer et al., 2023): a key and the
//! previous token divide the vocabulary in halves, and the sampler prefers one of them, the green one.

use std::collections::BTreeSet;

use corral_sdk::sampling::{Candidates, Rng, SeedableRng, SeededRng};
use corral_sdk::{Error, Model, NextTokenRequest, Request, Response, Token};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);

/// The most likely tokens among which to choose.
const CANDIDATES: u32 = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prompt: String,
    /// Added to the logits of green tokens; 0 leaves no watermark.
    #[serde(default = "default_strength")]
    strength: f32,
    #[serde(default = "default_temperature")]
    temperature: f32,
    #[serde(default)]
    seed: u64,
    /// The text does not end before.
    #[serde(default)]
    min_tokens: u32,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

/// Also an answer of `generate`, whose other fields are ignored.
#[derive(Deserialize)]
struct Suspect {
    text: String,
}

fn default_strength() -> f32 {
    2.0
}

fn default_temperature() -> f32 {
    1.0
}

fn default_max_tokens() -> u32 {
    200
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let key = Key::configured()?;
    let answer = match request.path().ends_with("/detect") {
        true => detect(key, request.json().await?).await?,
        false => generate(key, request.json().await?).await?,
    };
    Ok(Response::json(&answer))
}

#[derive(Clone, Copy)]
struct Key(u64);

impl Key {
    /// From the deployment's configuration.
    fn configured() -> Result<Self, Error> {
        let text = std::env::var("WATERMARK_KEY").unwrap_or_default();
        if text.is_empty() {
            let detail = "there is no key; set WATERMARK_KEY in [configuration] of corral.toml";
            return Err(Error::new(500, "no-key", detail));
        }
        Ok(Self::new(&text))
    }

    fn new(text: &str) -> Self {
        Key(text
            .bytes()
            .fold(0, |hash, byte| mix(hash ^ u64::from(byte))))
    }

    /// Whether a token is green after another one.
    fn is_green(self, previous: Token, token: Token) -> bool {
        mix(mix(self.0 ^ u64::from(previous)) ^ u64::from(token)) & 1 == 1
    }
}

/// Spreads a number over all bits. Not cryptographic.
fn mix(number: u64) -> u64 {
    SeededRng::seed_from_u64(number).next_u64()
}

async fn generate(key: Key, body: Body) -> Result<Value, Error> {
    let model = Model::open_default().await?;
    let sequence = model.sequence()?;
    sequence.append(&body.prompt)?;
    let start = sequence.len();
    let mut previous = sequence.tokens(start.saturating_sub(1)).pop().unwrap_or(0);
    let mut rng = SeededRng::seed_from_u64(body.seed);
    while sequence.len() - start < body.max_tokens {
        let distribution = sequence.next(NextTokenRequest::top(CANDIDATES)).await?;
        let mut candidates = distribution.candidates;
        let may_end = sequence.len() - start >= body.min_tokens;
        candidates.retain(|one| may_end || !model.is_end_of_generation(one.token));
        for one in &mut candidates {
            if key.is_green(previous, one.token) {
                one.logit += body.strength;
            }
        }
        let candidates = Candidates::from(candidates).temperature(body.temperature);
        match candidates.sample(&mut rng) {
            Some(token) if !model.is_end_of_generation(token) => {
                sequence.append_tokens(&[token])?;
                previous = token;
            }
            _ => break,
        }
    }
    let tokens = sequence.len() - start;
    Ok(json!({"text": sequence.text(start)?, "tokens": tokens}))
}

/// Counts green tokens. Computes no token: the model only tokenizes.
async fn detect(key: Key, body: Suspect) -> Result<Value, Error> {
    let tokens = Model::open_default().await?.tokenize(&body.text)?;
    // Each pair counts once: repetitions are no evidence.
    let pairs: BTreeSet<_> = tokens.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let green = pairs
        .iter()
        .filter(|(previous, token)| key.is_green(*previous, *token));
    let (green, all) = (green.count() as f64, pairs.len() as f64);
    // The distance from the half that chance gives, in standard deviations.
    let z = (green - all / 2.0) / (all.max(1.0) / 4.0).sqrt();
    Ok(json!({"watermarked": z > 4.0, "z": (z * 10.0).round() / 10.0, "pairs": pairs.len()}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// After every letter, all are equally likely.
    fn script() -> Script {
        let letters: Vec<_> = ('a'..='z').map(String::from).collect();
        let next: Vec<_> = letters
            .iter()
            .map(|letter| (letter.as_str(), 1.0))
            .collect();
        letters
            .iter()
            .fold(Script::new(), |script, letter| script.next(letter, &next))
    }

    fn text(key: &str, strength: f32) -> String {
        let body = json!({"prompt": "a", "strength": strength, "max_tokens": 200});
        let body = serde_json::from_value(body).unwrap();
        let answer = script().run(generate(Key::new(key), body)).unwrap();
        assert_eq!(answer["tokens"], 200);
        answer["text"].as_str().unwrap().to_owned()
    }

    fn found(key: &str, text: &str) -> Value {
        let text = text.to_owned();
        script()
            .run(detect(Key::new(key), Suspect { text }))
            .unwrap()
    }

    #[test]
    fn only_the_key_finds_the_watermark() {
        let marked = text("one", 2.0);
        assert_eq!(found("one", &marked)["watermarked"], true);
        assert_eq!(found("two", &marked)["watermarked"], false);
        assert_eq!(found("one", &text("one", 0.0))["watermarked"], false);
    }

    #[test]
    fn repetitions_are_no_evidence() {
        let marked = text("one", 2.0);
        let once = found("one", &marked[..10]);
        let again = found("one", &marked[..10].repeat(50));
        assert_eq!(once["watermarked"], false);
        assert_eq!(again["watermarked"], false);
        // The last letter and the first one are a further pair, if a new one.
        assert!(again["pairs"].as_u64() <= once["pairs"].as_u64().map(|pairs| pairs + 1));
        assert_eq!(found("one", "")["z"], 0.0);
    }

    #[test]
    fn halves_depend_on_key_and_previous_token() {
        let half = |key: &str, previous| {
            let key = Key::new(key);
            (0..1000)
                .filter(|&token| key.is_green(previous, token))
                .collect::<Vec<_>>()
        };
        let green = half("one", 7);
        assert!((450..=550).contains(&green.len()), "{}", green.len());
        assert_ne!(green, half("one", 8));
        assert_ne!(green, half("two", 7));
    }

    #[test]
    fn certain_tokens_stay() {
        let script = Script::new().answers("12+7=", "19");
        for key in ["one", "two", "three"] {
            let body = serde_json::from_value(json!({"prompt": "12+7="})).unwrap();
            let answer = script.run(generate(Key::new(key), body)).unwrap();
            assert_eq!(answer, json!({"text": "19", "tokens": 2}));
        }
    }
}
