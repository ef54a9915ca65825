//! Applies one prompt to many inputs. At most `concurrency` of them generate at once; each result is sent as a line of
//! JSON when it is ready. The prompt's text before the input is computed once.

use corral_sdk::{Error, GenerateOptions, Model, Request, Response, Sequence};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::json;
use std::pin::pin;

corral_sdk::handler!(batch_map);

const MOST_INPUTS: usize = 10_000;
const MOST_CONCURRENCY: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRequest {
    /// Text with `{}` where the input belongs.
    prompt: String,
    inputs: Vec<String>,
    #[serde(default = "default_concurrency")]
    concurrency: usize,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Whether to go on after the model's end token, to `max_tokens`.
    #[serde(default)]
    ignore_eos: bool,
}

fn default_concurrency() -> usize {
    16
}

fn default_max_tokens() -> u32 {
    64
}

async fn batch_map(request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: BatchRequest = request.with_body_limit(8 << 20).json().await?;
    let Some((before, after)) = body.prompt.split_once("{}") else {
        let detail = "the prompt has no {}, the place of the input";
        return Err(Error::bad_request("no-place", detail).with_field("prompt"));
    };
    for (field, value, most) in [
        ("inputs", body.inputs.len(), MOST_INPUTS),
        ("concurrency", body.concurrency, MOST_CONCURRENCY),
    ] {
        if !(1..=most).contains(&value) {
            let detail = format!("`{field}`: {value} is outside the range of 1 to {most}");
            return Err(Error::bad_request("out-of-range", detail).with_field(field));
        }
    }
    let prefix = Model::open_default().await?.sequence()?;
    prefix.append(before)?;
    let after = after.to_owned();
    let options = move || {
        let options = GenerateOptions::new(body.max_tokens);
        match body.ignore_eos {
            true => options.ignore_eos(),
            false => options,
        }
    };
    Ok(Response::json_lines(async move |lines| {
        let results = body.inputs.iter().enumerate().map(async |(index, input)| {
            match generate(&prefix, &format!("{input}{after}"), &options()).await {
                Ok(text) => json!({"index": index, "text": text}),
                // One failed input does not end the others.
                Err(error) => json!({"index": index, "error": error.to_string()}),
            }
        });
        // Writing waits for the client, and no input starts meanwhile: a slow client bounds the work.
        let mut results = pin!(stream::iter(results).buffer_unordered(body.concurrency));
        while let Some(result) = results.next().await {
            lines.json_line(&result).await?;
        }
        Ok(())
    }))
}

async fn generate(
    prefix: &Sequence,
    rest: &str,
    options: &GenerateOptions,
) -> Result<String, Error> {
    let sequence = prefix.fork()?;
    sequence.append(rest)?;
    sequence.generate(options)?.text().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    fn script() -> Script {
        Script::new()
            .answers("What is 1+1?\n", "2")
            .answers("What is 2+2?\n", "4")
            .answers("What is 3+3?\n", "6")
    }

    fn request(inputs: &[&str], concurrency: usize) -> Request {
        let body = json!({"prompt": "What is {}?\n", "inputs": inputs, "concurrency": concurrency});
        Request::post("/").with_json(&body)
    }

    #[test]
    fn each_input_gets_a_line() {
        let body = script().run(async {
            batch_map(request(&["1+1", "owls", "3+3"], 2))
                .await
                .unwrap()
                .read()
                .await
        });
        let body = String::from_utf8(body).unwrap();
        let mut lines: Vec<_> = body.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines[0], r#"{"index":0,"text":"2"}"#);
        assert!(lines[1].starts_with(r#"{"index":1,"error":"#), "{body}");
        assert_eq!(lines[2..], [r#"{"index":2,"text":"6"}"#]);
    }

    #[test]
    fn concurrency_bounds_what_a_slow_client_starts() {
        let script = script();
        script.run(async {
            let answer = batch_map(request(&["1+1"; 100], 3)).await.unwrap();
            answer.read_events(1).await;
        });
        let found = script.generations().len();
        assert!(found <= 4, "{:?}", script.generations());
    }

    #[test]
    fn wrong_requests_are_400() {
        script().run(async {
            for (request, code) in [
                (request(&[], 1), "out-of-range"),
                (request(&["1+1"], 0), "out-of-range"),
                (request(&["1+1"], 65), "out-of-range"),
                (
                    Request::post("/").with_json(&json!({"prompt": "", "inputs": ["1"]})),
                    "no-place",
                ),
            ] {
                let error = batch_map(request).await.err().expect("an error");
                assert_eq!((error.status(), error.code()), (400, code));
            }
        });
    }
}
