//! What `corral-bench boundary` and `corral-bench stages` measure with: one way of getting tokens, or of
//! calling the host, as often as it is asked. The last segment of the path says which, the body is a prompt,
//! and `?count=N` says how often. The answer is how often it was done.
//!
//! | segment | done `count` times |
//! |---|---|
//! | `generate` | a token by the host's loop, greedily |
//! | `sampler` | the same, chosen by the linked sampling plugin `sampler` |
//! | `top` | a token by a loop of its own over the 64 likeliest |
//! | `logits` | the same over whole rows, of which one number is read |
//! | `none` | nothing |
//! | `call` | asking the host for the sequence's length |

use corral_sdk::{Error, Generate, Look, Model, Request, Response, Sequence, Token};

corral_sdk::handler!(measure);

/// Candidates of the loop.
const TOP: u32 = 64;

async fn measure(mut request: Request) -> Result<Response, Error> {
    let count = request.parameter("count");
    let count = count.and_then(|count| count.parse().ok());
    let count: u32 = count.ok_or_else(|| Error::Invalid("say how often: ?count=N".to_owned()))?;
    let path = request.path().to_owned();
    let prompt = request.text().await?;
    let way = path.rsplit('/').next().unwrap_or_default();
    let done = match way {
        "none" => count,
        _ => {
            let sequence = Model::first().await?.sequence()?;
            sequence.append(&prompt)?;
            run(way, &sequence, count).await?
        }
    };
    Ok(Response::text(done.to_string()))
}

async fn run(way: &str, sequence: &Sequence, count: u32) -> Result<u32, Error> {
    let from = sequence.len();
    match way {
        "generate" => generated(sequence, Generate::new(count)).await,
        "sampler" => {
            let settings = r#"{"temperature":0}"#;
            let how = Generate::new(count).sample_with("sampler", settings);
            generated(sequence, how.await?).await
        }
        "top" => {
            for _ in 0..count {
                let told = sequence.next(Look::top(TOP)).await?;
                // They fall.
                let first = told.candidates.first().map(|candidate| candidate.token);
                sequence.append_tokens(&[first.ok_or_else(nothing)?])?;
            }
            Ok(sequence.len() - from)
        }
        "logits" => {
            for place in 0..count {
                let told = sequence.next(Look::logits()).await?;
                // What the guest itself makes of a row is not measured.
                let place = place as usize % told.logits.len().max(1);
                let logit = told.logits.get(place).ok_or_else(nothing)?;
                sequence.append_tokens(&[Token::from(logit.is_nan()) + 16])?;
            }
            Ok(sequence.len() - from)
        }
        "call" => {
            let calls = (0..count).filter(|_| sequence.len() == from);
            Ok(u32::try_from(calls.count()).unwrap_or(u32::MAX))
        }
        other => Err(Error::Invalid(format!("there is no way {other:?}"))),
    }
}

async fn generated(sequence: &Sequence, how: Generate) -> Result<u32, Error> {
    let mut generation = sequence.generate(&how.ignore_end())?;
    let mut done = 0;
    while let Some(chunk) = generation.next().await {
        done += u32::try_from(chunk.tokens.len()).unwrap_or(u32::MAX);
    }
    generation.outcome().await?;
    Ok(done)
}

fn nothing() -> Error {
    Error::Failed("a distribution without candidates".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn every_way_does_what_it_was_asked_so_often() {
        let ways = [
            ("generate", "4"),
            ("top", "4"),
            ("call", "4"),
            ("none", "4"),
        ];
        // What the loop over whole rows goes on with is not in the script.
        for (way, count) in ways.into_iter().chain([("logits", "1")]) {
            let script = Script::new().answers("1+1=", "2222");
            let answer = script.run(async {
                let target = format!("/measure/{way}?count={count}");
                let request = Request::post(&target).with_body("1+1=");
                measure(request).await.unwrap().read().await
            });
            assert_eq!(answer, count.as_bytes(), "{way}");
        }
    }
}
