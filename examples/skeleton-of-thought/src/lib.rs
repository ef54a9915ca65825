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
    /// The number of points, if they are numbered: the number takes the place of `{}`, and the outline's text is not
    /// read.
    count: Option<usize>,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether outline and points go on after the model's end token, to `max_tokens`.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_max_tokens() -> u32 {
    128
}

async fn skeleton(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: SkeletonRequest = request.json().await?;
    if body
        .count
        .is_some_and(|count| !(1..=MOST_POINTS).contains(&count))
    {
        let detail = format!("`count` is outside the range of 1 to {MOST_POINTS}");
        return Err(Error::bad_request("count", detail).with_field("count"));
    }
    let mut options = GenerateOptions::new(body.max_tokens);
    if body.ignore_eos {
        options = options.ignore_eos();
    }
    let outline = Model::open_default().await?.sequence()?;
    let (text, outlined) = ask(&outline, "", &body.outline, &options).await?;
    let turn_end = match (outlined.finish, body.count) {
        (Finish::End, _) => "\n",
        (_, Some(_)) => "<|im_end|>\n",
        (_, None) => {
            let detail = format!("the outline has more than {} tokens", body.max_tokens);
            return Err(Error::new(422, "long-outline", detail));
        }
    };
    let points = points(&text, body.count);

    let write = points.iter().map(async |point| {
        let question = body.point.replace("{}", point);
        ask(&outline.fork()?, turn_end, &question, &options).await
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

/// The points of an outline: its parts between commas, or the numbers up to `count`.
fn points(outline: &str, count: Option<usize>) -> Vec<String> {
    if let Some(count) = count {
        return (1..=count).map(|number| number.to_string()).collect();
    }
    let points = outline.split(',').map(str::trim);
    let points = points.filter(|point| !point.is_empty());
    points.take(MOST_POINTS).map(str::to_owned).collect()
}

/// Appends a turn of the user, after `before`, and generates the answer.
async fn ask(
    sequence: &Sequence,
    before: &str,
    question: &str,
    options: &GenerateOptions,
) -> Result<(String, Outcome), Error> {
    Prompt::default()
        .trusted(format!("{before}<|im_start|>user\n"))
        .text(question)
        .trusted("<|im_end|>\n<|im_start|>assistant\n")
        .append_to(sequence)?;
    sequence.generate(options)?.text_and_outcome().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn run(outline: &str, max_tokens: u32) -> (u16, Value) {
        ask_for(json!({"outline": outline, "point": "What is {}?", "max_tokens": max_tokens}))
    }

    fn ask_for(body: Value) -> (u16, Value) {
        let begin = "<|im_end|>\n<|im_start|>assistant\n";
        let point =
            |point: &str| format!("1+1, 2+2<|im_end|>\n<|im_start|>user\nWhat is {point}?{begin}");
        // After an outline of three tokens.
        let numbered =
            |point: u8| format!("1+1<|im_end|>\n<|im_start|>user\nWhat is {point}?{begin}");
        let script = Script::new()
            .answers(&format!("sums{begin}"), "1+1, 2+2")
            .answers(&format!("nothing{begin}"), "")
            .answers(&point("1+1"), "2")
            .answers(&point("2+2"), "4")
            .answers(&numbered(1), "one")
            .answers(&numbered(2), "two");
        script.post(skeleton, &body)
    }

    #[test]
    fn points_continue_the_outline() {
        let (status, body) = run("sums", 20);
        let points = json!([{"point": "1+1", "text": "2"}, {"point": "2+2", "text": "4"}]);
        assert_eq!((status, &body["points"]), (200, &points), "{body}");
        assert_eq!(run("nothing", 20).1["points"], json!([]));
    }

    #[test]
    fn numbered_points_do_not_read_the_outline() {
        let ask = |count: usize| {
            ask_for(
                json!({"outline": "sums", "point": "What is {}?", "count": count, "max_tokens": 3}),
            )
        };
        let (status, body) = ask(2);
        let points = json!([{"point": "1", "text": "one"}, {"point": "2", "text": "two"}]);
        assert_eq!((status, &body["points"]), (200, &points), "{body}");
        for count in [0, 17] {
            let (status, body) = ask(count);
            assert_eq!((status, &body["code"]), (400, &json!("count")), "{body}");
        }
    }

    #[test]
    fn cut_outline_is_an_error() {
        let (status, body) = run("sums", 3);
        assert_eq!(status, 422, "{body}");
        assert_eq!(body["code"], "long-outline", "{body}");
    }
}
