//! The host's own errors: RFC 9457 problems, or what clients of OpenAI's API read, as the deployment
//! wants it.
//!
//! `code` is stable and for programs; `detail` is for people and says what to do. A plugin's own
//! errors pass through untouched.

use crate::deployments::ErrorFormat;
use corral_runtime::{Body, Failure};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use std::time::Duration;

/// An error answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
    /// What `WWW-Authenticate` says.
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
        let mut problem = Problem::new(
            StatusCode::UNAUTHORIZED,
            "no-token",
            "this needs the admin token: send 'Authorization: Bearer TOKEN'; \
             'corral serve' says which file it is in",
        );
        problem.challenge = Some("Bearer");
        problem
    }

    /// The request's body is larger than the plugin takes.
    pub(crate) fn too_large(limit: u64) -> Self {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request-too-large",
            format!("the request's body is larger than {limit} bytes; send a smaller one"),
        )
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// The answer to send, as a problem document.
    pub(crate) fn into_response(self) -> Response<Body> {
        self.into_response_as(ErrorFormat::Problem)
    }

    /// The answer to send.
    pub(crate) fn into_response_as(self, format: ErrorFormat) -> Response<Body> {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let (content_type, json) = match format {
            ErrorFormat::Problem => (
                "application/problem+json",
                serde_json::json!({
                    "type": "about:blank",
                    "title": title,
                    "status": self.status.as_u16(),
                    "code": self.code,
                    "detail": self.detail,
                }),
            ),
            ErrorFormat::Openai => (
                "application/json",
                serde_json::json!({
                    "error": {
                        "message": self.detail,
                        "type": openai_type(self.status),
                        "param": null,
                        "code": self.code,
                    },
                }),
            ),
        };
        let mut response = Response::new(Body::from(json.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
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
}

/// The kind of an error as OpenAI's API names it.
fn openai_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
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
    async fn a_wrong_method_is_told_the_right_one() {
        let (head, body) = body_of(Problem::method("GET, HEAD")).await;
        assert_eq!(head.status(), 405);
        assert_eq!(head.headers()[ALLOW], "GET, HEAD");
        assert_eq!(body["code"], "method-not-allowed");
    }

    #[tokio::test]
    async fn an_error_as_openais_clients_read_it() {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "say \"when\"")
            .retry_after(Duration::from_secs(3));
        let (head, body) = read(problem.into_response_as(ErrorFormat::Openai)).await;
        assert_eq!(head.status(), 503);
        assert_eq!(head.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(head.headers()[RETRY_AFTER], "3");
        let error = serde_json::json!({
            "message": "say \"when\"",
            "type": "server_error",
            "param": null,
            "code": "busy",
        });
        assert_eq!(body, serde_json::json!({ "error": error }));
        assert_eq!(
            openai_type(StatusCode::PAYLOAD_TOO_LARGE),
            "invalid_request_error"
        );
    }

    #[test]
    fn retry_after_is_never_zero() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
    }
}
