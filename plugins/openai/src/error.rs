//! Errors as clients of the two APIs expect them.

use corral_sdk::{Error, Response};
use serde_json::{Value, json};

/// Whose words an error is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

/// An error and how it is told.
pub struct Failure(pub Dialect, pub Error);

impl From<Failure> for Response {
    fn from(Failure(dialect, error): Failure) -> Self {
        let mut response = Response::json(&body(dialect, &error)).with_status(error.status());
        for (name, value) in error.headers() {
            response = response.with_header(&name, &value);
        }
        response
    }
}

/// The body of an error's answer, and the data of the event that ends a stream of the other APIs.
pub fn body(dialect: Dialect, error: &Error) -> Value {
    match dialect {
        Dialect::OpenAi => json!({"error": {
            "message": error.to_string(),
            "type": openai_type(error.status()),
            "param": error.member(),
            "code": openai_code(error),
        }}),
        Dialect::Anthropic => json!({"type": "error", "error": {
            "type": anthropic_type(error.status()),
            "message": error.to_string(),
        }}),
    }
}

/// The event that ends a stream of the Responses API, without its number.
pub fn event(error: &Error) -> Value {
    json!({
        "type": "error",
        "code": openai_code(error),
        "message": error.to_string(),
        "param": error.member(),
    })
}

/// The same names as the host's own errors have in this format.
fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// The code where OpenAI's API has one of its own for this, else ours.
fn openai_code(error: &Error) -> &str {
    match (error.status(), error.code()) {
        (429, _) => "rate_limit_exceeded",
        (_, "context-full") => "context_length_exceeded",
        (_, "unknown-model") => "model_not_found",
        (_, code) => code,
    }
}

fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// What is known in the API, and can't be done here.
pub fn unsupported(member: &str, why: &str) -> Error {
    Error::bad_request(
        "unsupported",
        format!("`{member}` is not supported here: {why}"),
    )
    .about(member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_error_has_the_shape_of_its_api() {
        let refused = Error::Refused {
            reason: "the queue is full".to_owned(),
            retry_after: Duration::from_millis(1500),
        };
        let full = Error::ContextFull {
            needed: 9,
            limit: 8,
        };
        for (error, status, kind, code) in [
            (
                refused.clone(),
                429,
                "rate_limit_error",
                "rate_limit_exceeded",
            ),
            (
                full,
                400,
                "invalid_request_error",
                "context_length_exceeded",
            ),
            (Error::Deadline, 504, "server_error", "deadline"),
            (
                Error::new(404, "unknown-model", "x"),
                404,
                "invalid_request_error",
                "model_not_found",
            ),
            (
                Error::NotGranted("x".to_owned()),
                403,
                "permission_error",
                "not-granted",
            ),
        ] {
            let told = body(Dialect::OpenAi, &error);
            assert_eq!(told["error"]["message"], error.to_string());
            assert_eq!(
                (&told["error"]["type"], &told["error"]["code"]),
                (&kind.into(), &code.into())
            );
            assert_eq!(
                Response::from(Failure(Dialect::OpenAi, error)).status(),
                status
            );
        }
        let response = Response::from(Failure(Dialect::Anthropic, refused.clone()));
        assert_eq!(response.header("retry-after"), Some("2"));
        assert_eq!(
            body(Dialect::Anthropic, &refused),
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "the queue is full"}})
        );
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let told = body(
            Dialect::OpenAi,
            &unsupported("audio", "models here write text"),
        );
        assert_eq!(
            (&told["error"]["param"], &told["error"]["code"]),
            (&"audio".into(), &"unsupported".into())
        );
    }
}
