//! What a developing server adds to errors: the last line that the plugin wrote to standard error.

use super::Problem;
use bytes::{Bytes, BytesMut};
use corral_runtime::{Body, LastLine};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

/// Longest problem of a plugin that gets the line.
const MAX_PROBLEM_BYTES: usize = 64 << 10;
/// Most characters of the line.
const MAX_LINE_CHARS: usize = 500;

/// `detail` and the line, unless it has the line already.
pub(super) fn explain(detail: &str, last_line: &LastLine) -> String {
    match last_line.get() {
        Some(line) if !detail.contains(&line) => {
            let line: String = line.chars().take(MAX_LINE_CHARS).collect();
            format!("{detail}; its last line on stderr: {line}")
        }
        _ => detail.to_owned(),
    }
}

/// Adds the line to a problem that the plugin itself returns with a status of 500 or more.
///
/// # Errors
/// If the plugin fails before the end of its problem, or if that is too long.
pub(crate) async fn explain_response(
    response: Response<Body>,
    last_line: &LastLine,
) -> Result<Response<Body>, Problem> {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_problem = kind.is_some_and(|kind| kind == "application/problem+json");
    if !response.status().is_server_error() || !is_problem {
        return Ok(response);
    }
    let (mut head, mut body) = response.into_parts();
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            read.extend_from_slice(&data);
        }
        if read.len() > MAX_PROBLEM_BYTES {
            return Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "returned-error",
                format!("the plugin's error has more than {MAX_PROBLEM_BYTES} bytes; shorten it"),
            ));
        }
    }
    let problem = explain_problem(&read, last_line).unwrap_or_else(|| read.freeze());
    if head.headers.contains_key(CONTENT_LENGTH) {
        let length = HeaderValue::from(problem.len());
        head.headers.insert(CONTENT_LENGTH, length);
    }
    Ok(Response::from_parts(head, Body::from(problem)))
}

/// A problem with the line in its `detail`. `None` if it is not a problem.
fn explain_problem(problem: &[u8], last_line: &LastLine) -> Option<Bytes> {
    let mut problem: Value = serde_json::from_slice(problem).ok()?;
    let detail = problem.get_mut("detail")?;
    *detail = explain(detail.as_str()?, last_line).into();
    Some(problem.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn problem_of_plugin_gets_the_line() {
        let last_line = LastLine::default();
        last_line.record("ValueError: too loud");
        let ask = async |status: u16, kind: &str, body: &str| {
            let response = Response::builder()
                .status(status)
                .header(CONTENT_TYPE, kind)
                .header(CONTENT_LENGTH, body.len())
                .body(Body::from(body.to_owned()))
                .expect("valid");
            let response = explain_response(response, &last_line).await.expect("short");
            let length = response.headers()[CONTENT_LENGTH].clone();
            let bytes = response.into_body().collect().await.expect("in memory");
            let bytes = bytes.to_bytes();
            assert_eq!(length, bytes.len().to_string().as_str());
            String::from_utf8(bytes.to_vec()).expect("text")
        };
        let (problem, body) = (
            "application/problem+json",
            r#"{"code":"x","detail":"it failed"}"#,
        );
        let text = ask(500, problem, body).await;
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let detail = "it failed; its last line on stderr: ValueError: too loud";
        assert_eq!(value, serde_json::json!({"code": "x", "detail": detail}));
        // Not twice, not in other bodies, and not in errors of the client.
        assert_eq!(ask(500, problem, &text).await, text);
        for (status, kind, body) in [
            (500, "application/json", body),
            (400, problem, body),
            (500, problem, "no JSON"),
        ] {
            assert_eq!(ask(status, kind, body).await, body);
        }
        let long = "x".repeat(MAX_PROBLEM_BYTES + 1);
        let response = Response::builder()
            .status(500)
            .header(CONTENT_TYPE, problem)
            .body(Body::from(long))
            .expect("valid");
        let problem = explain_response(response, &last_line)
            .await
            .expect_err("long");
        assert_eq!(problem.code(), "returned-error");
    }
}
