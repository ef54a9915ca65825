//! Errors in the formats of OpenAI's and Anthropic's API.

use conversation::context_limit::excess;
use conversation::with_ignored;
use corral_sdk::{Error, Response};
use serde_json::{Value, json};

/// The API whose error format a response uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiFormat {
    OpenAi,
    Anthropic,
}

/// An error and its format.
pub struct ApiError(pub ApiFormat, pub Error);

impl From<ApiError> for Response {
    fn from(ApiError(api, error): ApiError) -> Self {
        let mut response = Response::json(&body(api, &error)).with_status(error.status());
        for (name, value) in error.headers() {
            response = response.with_header(&name, &value);
        }
        with_ignored(response)
    }
}

/// The body of an error response, and the data of an error event.
pub fn body(api: ApiFormat, error: &Error) -> Value {
    match api {
        ApiFormat::OpenAi => {
            let mut body = json!({"error": {
                "message": error.to_string(),
                "type": openai_type(error.status()),
                "param": error.field(),
                "code": openai_code(error),
            }});
            if let Some(excess) = excess().filter(|_| error.code() == "prompt-too-long") {
                // As in llama.cpp's server; OpenAI's clients read the code.
                body["error"]["type"] = "exceed_context_size_error".into();
                body["error"]["n_prompt_tokens"] = excess.prompt.into();
                body["error"]["n_ctx"] = excess.context.into();
            }
            body
        }
        ApiFormat::Anthropic => json!({"type": "error", "error": {
            "type": anthropic_type(error.status()),
            "message": error.to_string(),
        }}),
    }
}

/// The error event of the Responses API, without its sequence number. OpenAI's Python client raises an error only if there
/// is a field `error`.
pub fn responses_event(error: &Error) -> Value {
    let mut event = body(ApiFormat::OpenAi, error);
    event["type"] = "error".into();
    for name in ["code", "message", "param"] {
        event[name] = event["error"][name].clone();
    }
    event
}

/// The field `error` of a failed response of the Responses API.
pub fn responses_error(error: &Error) -> Value {
    json!({"code": openai_code(error), "message": error.to_string()})
}

/// The names are those of the host's own errors in this format; a 501, which the host does not have, is named as by
/// llama.cpp's server.
fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        501 => "not_supported_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// OpenAI's code if there is one, otherwise the error's own.
fn openai_code(error: &Error) -> &str {
    match (error.status(), error.code()) {
        (429, _) => "rate_limit_exceeded",
        (_, "context-full" | "prompt-too-long") => "context_length_exceeded",
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

#[cfg(test)]
mod tests {
    use super::*;
    use conversation::unsupported;
    use std::time::Duration;

    #[test]
    fn errors_have_the_format_of_their_api() {
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
            let response = body(ApiFormat::OpenAi, &error);
            assert_eq!(response["error"]["message"], error.to_string());
            assert_eq!(response["error"]["type"], kind);
            assert_eq!(response["error"]["code"], code);
            let found = Response::from(ApiError(ApiFormat::OpenAi, error)).status();
            assert_eq!(found, status);
        }
        let response = Response::from(ApiError(ApiFormat::Anthropic, refused.clone()));
        assert_eq!(response.header("retry-after"), Some("2"));
        assert_eq!(
            body(ApiFormat::Anthropic, &refused),
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "the queue is full"}})
        );
    }

    #[test]
    fn unsupported_field_is_named() {
        let response = body(
            ApiFormat::OpenAi,
            &unsupported("audio", "models generate text only"),
        );
        assert_eq!(response["error"]["param"], "audio");
        assert_eq!(response["error"]["code"], "unsupported");
    }
}
