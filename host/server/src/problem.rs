//! The host's own errors, in the format that a deployment asks for: as RFC 9457 problems, or as OpenAI's
//! API has them.
//!
//! `code` is stable and for programs; `detail` is for people and says what to do. A plugin's own
//! errors pass through untouched.

use bytes::Bytes;
use corral_runtime::{Body, CallError, QuotaExceeded, QuotaLimit};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;

/// How errors of the host look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ErrorFormat {
    /// `{"type", "title", "status", "code", "detail"}`, RFC 9457.
    #[default]
    Problem,
    /// `{"error": {"message", "type", "param", "code"}}`, as clients of OpenAI's API expect.
    OpenAi,
}

impl ErrorFormat {
    /// Its name in options and manifests.
    pub fn name(self) -> &'static str {
        match self {
            ErrorFormat::Problem => "problem",
            ErrorFormat::OpenAi => "openai",
        }
    }
}

impl FromStr for ErrorFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "problem" => Ok(ErrorFormat::Problem),
            "openai" => Ok(ErrorFormat::OpenAi),
            _ => Err("it is no format of errors; write problem or openai".to_owned()),
        }
    }
}

/// An error answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
    /// The challenge that goes with a 401.
    authenticate: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Problem {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
            allow: None,
            authenticate: None,
        }
    }

    /// Tells the client when to come again, in whole seconds rounded up.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// No route leads to this path. Doesn't say which ones there are.
    pub(crate) fn no_route(path: &str) -> Self {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no-route",
            format!("nothing is deployed at {path}; check the path"),
        )
    }

    /// This path is there, but not for this method.
    pub(crate) fn method(allow: &'static str) -> Self {
        let mut problem = Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            format!("this path answers {allow} only"),
        );
        problem.allow = Some(allow);
        problem
    }

    /// The admin API's token is missing or wrong.
    pub(crate) fn no_token() -> Self {
        Problem::unauthorized(
            "no-token",
            "this needs the admin token: send 'Authorization: Bearer TOKEN'; \
             'corral serve' says which file it is in",
        )
    }

    /// The request's body is larger than the plugin takes.
    pub(crate) fn too_large(limit: u64) -> Self {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request-too-large",
            format!("the request's body is larger than {limit} bytes; send a smaller one"),
        )
    }

    /// The request has no key, or one that is no good (RFC 6750, 3).
    pub(crate) fn unauthorized(code: &'static str, detail: &str) -> Self {
        let mut problem = Problem::new(StatusCode::UNAUTHORIZED, code, detail);
        problem.authenticate = Some(match code {
            "wrong-key" => "Bearer realm=\"corral\", error=\"invalid_token\"",
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

    /// The answer to send, as a problem.
    pub(crate) fn into_response(self) -> Response<Body> {
        self.into_response_as(ErrorFormat::Problem)
    }

    /// The answer to send.
    pub(crate) fn into_response_as(self, format: ErrorFormat) -> Response<Body> {
        let text = self.text(format);
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(match format {
                ErrorFormat::Problem => "application/problem+json",
                ErrorFormat::OpenAi => "application/json",
            }),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(challenge) = self.authenticate {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }

    /// The last event of a stream of server-sent events that ends with it.
    pub(crate) fn event(&self, format: ErrorFormat) -> Bytes {
        let text = self.text(format);
        // Those who read problems know events by their names; OpenAI's clients look at the data of
        // every event for an `error`.
        let event = match format {
            ErrorFormat::Problem => format!("event: error\ndata: {text}\n\n"),
            ErrorFormat::OpenAi => format!("data: {text}\n\n"),
        };
        event.into()
    }

    /// JSON, in one line.
    fn text(&self, format: ErrorFormat) -> String {
        let json = match format {
            ErrorFormat::Problem => serde_json::json!({
                "type": "about:blank",
                "title": self.status.canonical_reason().unwrap_or("Error"),
                "status": self.status.as_u16(),
                "code": self.code,
                "detail": self.detail,
            }),
            ErrorFormat::OpenAi => serde_json::json!({
                "error": {
                    "message": self.detail,
                    "type": self.openai_type(),
                    "param": null,
                    "code": self.openai_code(),
                },
            }),
        };
        json.to_string()
    }

    /// What OpenAI's API calls this kind of error.
    fn openai_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The code where OpenAI's API has one of its own for this, else ours.
    fn openai_code(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "invalid_api_key",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            _ => self.code,
        }
    }
}

impl From<QuotaExceeded> for Problem {
    fn from(refusal: QuotaExceeded) -> Self {
        let code = match refusal.limit {
            QuotaLimit::Concurrent => "too-many-at-once",
            QuotaLimit::RequestsPerMinute => "too-many-requests",
            QuotaLimit::TokensPerRequest
            | QuotaLimit::TokensPerMinute
            | QuotaLimit::TokensPerDay => "out-of-tokens",
        };
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, code, refusal.to_string());
        problem.retry_after = refusal.retry_after;
        problem
    }
}

impl From<CallError> for Problem {
    fn from(failure: CallError) -> Self {
        let status =
            StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Problem::new(status, failure.code(), failure.to_string());
        problem.retry_after = failure.retry_after();
        problem
    }
}

/// Seconds for `Retry-After`: rounded up, and at least one, since 0 invites a storm.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
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
    async fn a_problem_has_what_rfc_9457_asks_for() {
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
    async fn errors_look_as_the_deployment_asks() {
        for (problem, status, kind, code) in [
            (
                Problem::unauthorized("wrong-key", "x"),
                401,
                "authentication_error",
                "invalid_api_key",
            ),
            (
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "out-of-tokens", "x"),
                429,
                "rate_limit_error",
                "rate_limit_exceeded",
            ),
            (
                Problem::too_large(5),
                413,
                "invalid_request_error",
                "request-too-large",
            ),
            (
                CallError::Deadline {
                    time: Duration::from_secs(1),
                }
                .into(),
                504,
                "server_error",
                "deadline",
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
            let event = problem.event(ErrorFormat::OpenAi);
            let text = std::str::from_utf8(&event).expect("text");
            assert_eq!(
                text,
                format!("data: {}\n\n", problem.text(ErrorFormat::OpenAi))
            );
        }
        for format in [ErrorFormat::Problem, ErrorFormat::OpenAi] {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let (head, body) = body_of(Problem::unauthorized("wrong-key", "x")).await;
        assert_eq!(
            head.headers()[WWW_AUTHENTICATE],
            "Bearer realm=\"corral\", error=\"invalid_token\""
        );
        assert_eq!(body["code"], "wrong-key");
    }

    #[tokio::test]
    async fn a_wrong_method_is_told_the_right_one() {
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
