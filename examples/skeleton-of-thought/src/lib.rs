//! Skeleton of thought: the model writes an outline, then all its points side by side. Each point continues a fork of
//! the outline's sequence, so question and outline are computed once, and the answer takes as many steps as its longest
//! point.

use corral_sdk::template::Prompt;
use corral_sdk::{Error, Finish, GenerateOptions, Model, Outcome, Request, Response, Sequence};
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::json;

corral_sdk::handler!(skeleton);

/// Further points of an outline are dropped.
const MOST_POINTS: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SkeletonRequest {
    /// Asks for points, separated by commas.
    outline: String,
    /// Asks for the text of a point, which takes the place of `{}`.
    point: String,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
}

fn default_max_tokens() -> u32 {
    128
}

async fn skeleton(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: SkeletonRequest = request.json().await?;
    let outline = Model::open_default().await?.sequence()?;
    let (text, outlined) = ask(&outline, "", &body.outline, body.max_tokens).await?;
    if outlined.finish != Finish::End {
        let detail = format!("the outline has more than {} tokens", body.max_tokens);
        return Err(Error::new(422, "long-outline", detail));
    }
    let points = text
        .split(',')
        .map(str::trim)
        .filter(|point| !point.is_empty());
    let points: Vec<_> = points.take(MOST_POINTS).collect();

    let write = points.iter().map(async |point| {
        let question = body.point.replace("{}", point);
        ask(&outline.fork()?, "\n", &question, body.max_tokens).await
    });
    let written = try_join_all(write).await?;

    let outcomes = || {
        written
            .iter()
            .map(|(_, outcome)| outcome)
            .chain([&outlined])
    };
    let texts = written.iter().map(|(text, _)| text);
    Ok(Response::json(&json!({
        "points": points.iter().zip(texts).map(|(point, text)| json!({"point": point, "text": text})).collect::<Vec<_>>(),
        "prompt_tokens": outcomes().map(|outcome| outcome.prompt_tokens).sum::<u32>(),
        "cached_tokens": outcomes().map(|outcome| outcome.cached_tokens).sum::<u32>(),
    })))
}

/// Appends a turn of the user, after `before`, and generates the answer.
async fn ask(
    sequence: &Sequence,
    before: &str,
    question: &str,
    max_tokens: u32,
) -> Result<(String, Outcome), Error> {
    Prompt::default()
        .trusted(format!("{before}<|im_start|>user\n"))
        .text(question)
        .trusted("<|im_end|>\n<|im_start|>assistant\n")
        .append_to(sequence)?;
    sequence
        .generate(&GenerateOptions::new(max_tokens))?
        .text_and_outcome()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn run(outline: &str, max_tokens: u32) -> (u16, Value) {
        let begin = "<|im_end|>\n<|im_start|>assistant\n";
        let point =
            |point: &str| format!("1+1, 2+2<|im_end|>\n<|im_start|>user\nWhat is {point}?{begin}");
        let script = Script::new()
            .answers(&format!("sums{begin}"), "1+1, 2+2")
            .answers(&format!("nothing{begin}"), "")
            .answers(&point("1+1"), "2")
            .answers(&point("2+2"), "4");
        script.run(async {
            let body =
                json!({"outline": outline, "point": "What is {}?", "max_tokens": max_tokens});
            let answer = skeleton(Request::post("/").with_json(&body))
                .await
                .unwrap_or_else(Response::from);
            (
                answer.status(),
                serde_json::from_slice(&answer.read().await).unwrap(),
            )
        })
    }

    #[test]
    fn points_continue_the_outline() {
        let (status, body) = run("sums", 20);
        let points = json!([{"point": "1+1", "text": "2"}, {"point": "2+2", "text": "4"}]);
        assert_eq!((status, &body["points"]), (200, &points), "{body}");
        assert_eq!(run("nothing", 20).1["points"], json!([]));
    }

    #[test]
    fn cut_outline_is_an_error() {
        let (status, body) = run("sums", 3);
        assert_eq!(
            (status, &body["code"]),
            (422, &json!("long-outline")),
            "{body}"
        );
    }
}
