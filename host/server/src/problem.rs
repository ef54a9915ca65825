//! Errors of the host, in the format of the deployment: RFC 9457 problems, or errors as in OpenAI's, Anthropic's or
//! Ollama's API.
//!
//! `code` is stable and for programs; `detail` is for people and says what to do. Errors of plugins pass
//! through unchanged.

mod development;
mod stream_end;

pub(crate) use development::explain_response;
pub(crate) use stream_end::{StreamFormat, shown_response_id};

use crate::json_response::no_store;
use crate::routes::is_below;
use corral_runtime::{Body, CallError, LastLine, QuotaExceeded, QuotaLimit};
use development::explain;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use strum::{EnumString, IntoStaticStr};

/// Format of the host's errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[derive(EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ErrorFormat {
    /// `{"type", "title", "status", "code", "detail"}`, RFC 9457.
    #[default]
    Problem,
    /// `{"error": {"message", "type", "param", "code"}}`, as clients of OpenAI's API expect; at '/v1/messages' as
    /// with 'anthropic'.
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`, as clients of Anthropic's API expect.
    Anthropic,
    /// `{"error"}` with a message, as clients of Ollama's API expect.
    Ollama,
}

impl ErrorFormat {
    /// Its name in options and manifests.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The format of errors at `path`.
    pub(crate) fn at(self, path: &str) -> Self {
        match self {
            ErrorFormat::OpenAi if is_below(path, "/v1/messages") => ErrorFormat::Anthropic,
            format => format,
        }
    }
}

/// An error response.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
    /// Value of `WWW-Authenticate`, for a 401.
    challenge: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Problem {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
            allow: None,
            challenge: None,
        }
    }

    /// The problem of a failed call, explained by the last line that the plugin wrote to standard error.
    pub(crate) fn of_call(error: CallError, last_line: Option<&LastLine>) -> Self {
        let mut problem = Problem::from(error);
        if let Some(last_line) = last_line {
            problem.detail = explain(&problem.detail, last_line);
        }
        problem
    }

    /// Adds `Retry-After`, in whole seconds rounded up.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// 404: no route matches `path`. Does not reveal the existing routes.
    pub(crate) fn no_route(path: &str) -> Self {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no-route",
            format!("nothing is deployed at {path}; check the path"),
        )
    }

    /// 503: models and plugins are being loaded, or the server is shutting down.
    pub(crate) fn not_ready(reasons: &[String]) -> Self {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not-ready",
            format!("{}; try again later", reasons.join("; ")),
        )
        .retry_after(Duration::from_secs(1))
    }

    /// 503: the server ends a response early.
    pub(crate) fn shutting_down() -> Self {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting-down",
            "the server is shutting down and ended this answer early; send the request again",
        )
    }

    /// 429: the client's address has too many connections.
    pub(crate) fn address_full() -> Self {
        Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-connections",
            "your address has as many connections as it may; use those again, or close some",
        )
        .retry_after(Duration::from_secs(1))
    }

    /// 405: the path exists, but not for this method.
    pub(crate) fn method(allow: &'static str) -> Self {
        let mut problem = Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            format!("this path answers {allow} only"),
        );
        problem.allow = Some(allow);
        problem
    }

    /// 400: the request is malformed.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// 400: the client did not send the whole body.
    pub(crate) fn body_incomplete() -> Self {
        Problem::bad_request("the request's body is incomplete or violates HTTP; send it again")
    }

    /// 408: the client paused within the body for `idle` or longer.
    pub(crate) fn body_stalled(idle: Duration) -> Self {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            format!(
                "nothing of the request's body arrived for {} s; send it without such pauses",
                idle.as_secs_f32()
            ),
        )
    }

    /// 413: the request's body is larger than `limit`.
    pub(crate) fn too_large(limit: u64) -> Self {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request-too-large",
            format!("the request's body is larger than {limit} bytes; send a smaller one"),
        )
    }

    /// 401: the admin token is missing or wrong.
    pub(crate) fn token_required() -> Self {
        Problem::unauthorized(
            "token-required",
            "this needs the admin token: send 'Authorization: Bearer TOKEN'; \
             'corral serve' prints the file that holds it",
        )
    }

    /// 401: the request has no valid key (RFC 6750, 3).
    pub(crate) fn unauthorized(code: &'static str, detail: &str) -> Self {
        let mut problem = Problem::new(StatusCode::UNAUTHORIZED, code, detail);
        problem.challenge = Some(match code {
            "invalid-key" => "Bearer realm=\"corral\", error=\"invalid_token\"",
            _ => "Bearer realm=\"corral\"",
        });
        problem
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// When to try again.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The response, as an RFC 9457 problem.
    pub(crate) fn into_response(self) -> Response<Body> {
        self.into_response_as(ErrorFormat::Problem)
    }

    /// The response as HTTP/1.1 writes it, for a connection that is closed after it.
    pub(crate) fn http1_message(&self) -> Vec<u8> {
        let text = self.text(ErrorFormat::Problem);
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: {}\r\n",
            self.status,
            text.len()
        );
        if let Some(wait) = self.retry_after {
            head += &format!("Retry-After: {}\r\n", whole_seconds(wait));
        }
        (head + "\r\n" + &text).into_bytes()
    }

    /// The response in `format`.
    pub(crate) fn into_response_as(self, format: ErrorFormat) -> Response<Body> {
        let content_type = match format {
            ErrorFormat::Problem => "application/problem+json",
            ErrorFormat::OpenAi | ErrorFormat::Anthropic | ErrorFormat::Ollama => {
                "application/json"
            }
        };
        let mut response = no_store(self.text(format).into(), content_type);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }

    /// JSON on one line.
    fn text(&self, format: ErrorFormat) -> String {
        let json = match format {
            ErrorFormat::Problem => serde_json::json!({
                "type": "about:blank",
                "title": self.status.canonical_reason().unwrap_or("Error"),
                "status": self.status.as_u16(),
                "code": self.code,
                "detail": self.detail,
            }),
            ErrorFormat::OpenAi => serde_json::json!({"error": self.openai_error()}),
            ErrorFormat::Anthropic => serde_json::json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.detail},
            }),
            ErrorFormat::Ollama => serde_json::json!({"error": self.detail}),
        };
        json.to_string()
    }

    /// The error in OpenAI's API.
    fn openai_error(&self) -> serde_json::Value {
        serde_json::json!({
            "message": self.detail,
            "type": self.openai_type(),
            "param": null,
            "code": self.openai_code(),
        })
    }

    /// The error type in OpenAI's API.
    fn openai_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The error type in Anthropic's API.
    fn anthropic_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The code in OpenAI's API, or our own if that has none.
    fn openai_code(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "invalid_api_key",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            _ => self.code,
        }
    }
}

impl From<QuotaExceeded> for Problem {
    fn from(error: QuotaExceeded) -> Self {
        let code = match error.limit {
            QuotaLimit::Concurrent => "concurrency-exceeded",
            QuotaLimit::RequestsPerMinute => "request-rate-exceeded",
            QuotaLimit::TokensPerRequest
            | QuotaLimit::TokensPerMinute
            | QuotaLimit::TokensPerDay => "token-quota-exceeded",
        };
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, code, error.to_string());
        problem.retry_after = error.retry_after;
        problem
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let status =
            StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Problem::new(status, error.code(), error.to_string());
        problem.retry_after = error.retry_after();
        problem
    }
}

/// Seconds for `Retry-After`: rounded up and at least one, since 0 invites a storm of retries.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt;

    async fn body_of(problem: Problem) -> (Response<()>, serde_json::Value) {
        read(problem.into_response()).await
    }

    async fn read(response: Response<Body>) -> (Response<()>, serde_json::Value) {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body in memory").to_bytes();
        let value = serde_json::from_slice(&bytes).expect("JSON");
        (Response::from_parts(parts, ()), value)
    }

    #[tokio::test]
    async fn problem_has_members_of_rfc_9457() {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "say \"when\"\n")
            .retry_after(Duration::from_millis(1500));
        let (head, body) = body_of(problem).await;
        assert_eq!(head.status(), 503);
        assert_eq!(head.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(head.headers()[RETRY_AFTER], "2");
        assert_eq!(
            body,
            serde_json::json!({
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": 503,
                "code": "busy",
                "detail": "say \"when\"\n",
            })
        );
    }

    #[tokio::test]
    async fn errors_use_format_of_deployment() {
        for (problem, status, kind, code, anthropic) in [
            (
                Problem::unauthorized("invalid-key", "x"),
                401,
                "authentication_error",
                "invalid_api_key",
                "authentication_error",
            ),
            (
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "token-quota-exceeded", "x"),
                429,
                "rate_limit_error",
                "rate_limit_exceeded",
                "rate_limit_error",
            ),
            (
                Problem::too_large(5),
                413,
                "invalid_request_error",
                "request-too-large",
                "request_too_large",
            ),
            (
                Problem::not_ready(&["models are being loaded".to_owned()]),
                503,
                "server_error",
                "not-ready",
                "overloaded_error",
            ),
            (
                CallError::Deadline {
                    time: Duration::from_secs(1),
                }
                .into(),
                504,
                "server_error",
                "deadline",
                "timeout_error",
            ),
        ] {
            let response = problem.clone().into_response_as(ErrorFormat::OpenAi);
            let (parts, body) = response.into_parts();
            assert_eq!(parts.status, status);
            assert_eq!(parts.headers[CONTENT_TYPE], "application/json");
            let bytes = body.collect().await.expect("a body in memory").to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            assert_eq!(
                body["error"],
                serde_json::json!({
                    "message": problem.detail,
                    "type": kind,
                    "param": null,
                    "code": code,
                })
            );
            let text = problem.text(ErrorFormat::Anthropic);
            let body: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let error = serde_json::json!({"type": anthropic, "message": problem.detail});
            assert_eq!(body, serde_json::json!({"type": "error", "error": error}));
            let text = problem.text(ErrorFormat::Ollama);
            let body: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(body, serde_json::json!({"error": problem.detail}));
        }
        for format in [
            ErrorFormat::Problem,
            ErrorFormat::OpenAi,
            ErrorFormat::Anthropic,
            ErrorFormat::Ollama,
        ] {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let (head, body) = body_of(Problem::unauthorized("invalid-key", "x")).await;
        assert_eq!(
            head.headers()[WWW_AUTHENTICATE],
            "Bearer realm=\"corral\", error=\"invalid_token\""
        );
        assert_eq!(body["code"], "invalid-key");
    }

    #[test]
    fn messages_route_has_anthropics_format() {
        use ErrorFormat::{Anthropic, OpenAi, Problem};
        for (format, path, expected) in [
            (OpenAi, "/v1/messages", Anthropic),
            (OpenAi, "/v1/messages/count_tokens", Anthropic),
            (OpenAi, "/v1/messages2", OpenAi),
            (OpenAi, "/v1/chat/completions", OpenAi),
            (Problem, "/v1/messages", Problem),
            (Anthropic, "/anywhere", Anthropic),
        ] {
            assert_eq!(format.at(path), expected, "{format:?} {path}");
        }
    }

    #[tokio::test]
    async fn wrong_method_answers_allowed_methods() {
        let (head, body) = body_of(Problem::method("GET, HEAD")).await;
        assert_eq!(head.status(), 405);
        assert_eq!(head.headers()[ALLOW], "GET, HEAD");
        assert_eq!(body["code"], "method-not-allowed");
    }

    #[test]
    fn retry_after_is_never_zero() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
    }
}
