//! Errors, and their HTTP responses.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bindings::types;

/// An error of the host or of the plugin. A handler can return any of them: the client receives
/// problem details (RFC 9457) with the matching status and code.
///
/// ```
/// use corral_sdk::Error;
///
/// let error = Error::new(409, "game-over", "this game has ended; start another one");
/// assert_eq!((error.status(), error.code()), (409, "game-over"));
/// assert_eq!(error.to_string(), "this game has ended; start another one");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid. The text names the argument and what was expected. (400)
    Invalid(String),
    /// No model, snapshot or sampling plugin of this name is available. (404)
    NotFound(String),
    /// The deployment does not grant this operation or this amount. (403)
    NotGranted(String),
    /// The call needs more positions than a sequence may have. (400)
    ContextFull {
        /// Positions that the call needs.
        needed: u32,
        /// Positions that a sequence may have.
        limit: u32,
    },
    /// A queue, budget or rate limit is full; retrying later can succeed. (429, with `Retry-After`)
    Refused {
        /// The exhausted resource.
        reason: String,
        /// Estimated time until a retry can succeed.
        retry_after: Duration,
    },
    /// The request's deadline passed. (504)
    Deadline,
    /// The client disconnected, or the operator canceled the request. (499)
    Cancelled,
    /// The model, the device or the disk failed. (500)
    Failed(String),
    /// An error that the plugin defines; see [`Error::new`].
    Problem(Box<Problem>),
}

/// An error that a plugin defines.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: u16,
    code: Cow<'static, str>,
    detail: String,
    headers: Vec<(String, String)>,
    field: Option<String>,
}

impl Error {
    /// Creates an error with a status and a stable kebab-case code, which clients may match on.
    /// `detail` says what happened and what was expected.
    pub fn new(status: u16, code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Error::Problem(Box::new(Problem {
            status,
            code: code.into(),
            detail: detail.into(),
            headers: Vec::new(),
            field: None,
        }))
    }

    /// Creates a 400: the client's request is invalid.
    pub fn bad_request(code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self::new(400, code, detail)
    }

    /// Creates a 405: the route does not support the method. `allowed` becomes the header `Allow`.
    pub fn method_not_allowed(allowed: &str, detail: impl Into<String>) -> Self {
        Self::new(405, "method-not-allowed", detail).with_header("allow", allowed)
    }

    /// Creates a 400: `what`, such as a field's name, has the wrong JSON type.
    ///
    /// ```
    /// # use corral_sdk::Error;
    /// let error = Error::wrong_type("`stop`", "a string", &1.into());
    /// assert_eq!(error.to_string(), "`stop` is a number; expected a string");
    /// ```
    pub fn wrong_type(what: &str, expected: &str, found: &Value) -> Self {
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        Self::bad_request(
            "wrong-type",
            format!("{what} is {found}; expected {expected}"),
        )
    }

    /// Adds a header to the error's response. A host error becomes a [`Error::Problem`].
    pub fn with_header(self, name: &str, value: &str) -> Self {
        let mut problem = self.into_problem();
        problem.headers.push((name.to_owned(), value.to_owned()));
        Error::Problem(problem)
    }

    /// Records the request field that caused the error. A host error becomes a [`Error::Problem`].
    pub fn with_field(self, field: &str) -> Self {
        let mut problem = self.into_problem();
        problem.field = Some(field.to_owned());
        Error::Problem(problem)
    }

    /// The path of the request field that caused the error, such as `messages[0].role`.
    pub fn field(&self) -> Option<&str> {
        match self {
            Error::Problem(problem) => problem.field.as_deref(),
            _ => None,
        }
    }

    fn into_problem(self) -> Box<Problem> {
        match self {
            Error::Problem(problem) => problem,
            other => Box::new(Problem {
                status: other.status(),
                code: other.code().to_owned().into(),
                detail: other.to_string(),
                headers: other.headers(),
                field: None,
            }),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Error::Invalid(_) | Error::ContextFull { .. } => 400,
            Error::NotFound(_) => 404,
            Error::NotGranted(_) => 403,
            Error::Refused { .. } => 429,
            Error::Deadline => 504,
            Error::Cancelled => 499,
            Error::Failed(_) => 500,
            Error::Problem(problem) => problem.status,
        }
    }

    /// The error's stable kebab-case code.
    pub fn code(&self) -> &str {
        match self {
            Error::Invalid(_) => "invalid",
            Error::NotFound(_) => "not-found",
            Error::NotGranted(_) => "not-granted",
            Error::ContextFull { .. } => "context-full",
            Error::Refused { .. } => "refused",
            Error::Deadline => "deadline",
            Error::Cancelled => "cancelled",
            Error::Failed(_) => "failed",
            Error::Problem(problem) => &problem.code,
        }
    }

    /// The headers of the error's response, without those that describe the body.
    pub fn headers(&self) -> Vec<(String, String)> {
        match self {
            Error::Problem(problem) => problem.headers.clone(),
            Error::Refused { retry_after, .. } => {
                // Whole seconds, rounded up.
                let seconds = retry_after.as_millis().div_ceil(1000);
                vec![("retry-after".to_owned(), seconds.to_string())]
            }
            _ => Vec::new(),
        }
    }

    /// The body of the error's response, of type `application/problem+json`.
    pub fn to_json(&self) -> String {
        json!({
            "type": "about:blank",
            "title": title(self.status()),
            "status": self.status(),
            "code": self.code(),
            "detail": self.to_string(),
        })
        .to_string()
    }
}

/// The status's reason phrase, which RFC 9457 requires as the title of `about:blank`.
fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        499 => "Client Closed Request",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ if status < 500 => "Client Error",
        _ => "Internal Server Error",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(text)
            | Error::NotFound(text)
            | Error::NotGranted(text)
            | Error::Failed(text) => f.write_str(text),
            Error::ContextFull { needed, limit } => write!(
                f,
                "the call needs {needed} positions; a sequence may have {limit}"
            ),
            Error::Refused { reason, .. } => f.write_str(reason),
            Error::Deadline => f.write_str(
                "the request reached its time limit; ask for less, or raise `time-seconds`",
            ),
            Error::Cancelled => f.write_str("the request was cancelled"),
            Error::Problem(problem) => f.write_str(&problem.detail),
        }
    }
}

impl std::error::Error for Error {}

impl From<types::Error> for Error {
    fn from(error: types::Error) -> Self {
        match error {
            types::Error::Invalid(text) => Error::Invalid(text),
            types::Error::NotFound(text) => Error::NotFound(text),
            types::Error::NotGranted(text) => Error::NotGranted(text),
            types::Error::ContextFull(limit) => Error::ContextFull {
                needed: limit.needed,
                limit: limit.limit,
            },
            types::Error::Refused(refusal) => Error::Refused {
                reason: refusal.reason,
                retry_after: Duration::from_millis(refusal.retry_after_ms.into()),
            },
            types::Error::Deadline => Error::Deadline,
            types::Error::Cancelled => Error::Cancelled,
            types::Error::Failed(text) => Error::Failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_json_has_all_fields() {
        assert_eq!(
            Error::bad_request("empty-prompt", "`prompt` is empty").to_json(),
            r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"empty-prompt","detail":"`prompt` is empty"}"#
        );
    }

    #[test]
    fn retry_after_is_rounded_up() {
        for (ms, seconds) in [(0, "0"), (1, "1"), (1000, "1"), (1001, "2")] {
            let refusal = types::Refusal {
                reason: "the queue is full".to_owned(),
                retry_after_ms: ms,
            };
            let error = Error::from(types::Error::Refused(refusal));
            let expected = [("retry-after".to_owned(), seconds.to_owned())];
            assert_eq!(error.headers(), expected);
        }
        assert_eq!(Error::Deadline.headers(), []);
    }

    #[test]
    fn every_host_error_has_its_status() {
        let text = || "x".to_owned();
        for (error, status, code) in [
            (types::Error::Invalid(text()), 400, "invalid"),
            (types::Error::NotFound(text()), 404, "not-found"),
            (types::Error::NotGranted(text()), 403, "not-granted"),
            (
                types::Error::ContextFull(types::ContextLimit {
                    needed: 9,
                    limit: 8,
                }),
                400,
                "context-full",
            ),
            (types::Error::Deadline, 504, "deadline"),
            (types::Error::Cancelled, 499, "cancelled"),
            (types::Error::Failed(text()), 500, "failed"),
        ] {
            let error = Error::from(error);
            assert_eq!((error.status(), error.code()), (status, code));
        }
    }

    #[test]
    fn with_header_keeps_status_and_code() {
        let error = Error::Refused {
            reason: "full".to_owned(),
            retry_after: Duration::from_millis(1),
        }
        .with_header("x-queue", "7");
        assert_eq!((error.status(), error.code()), (429, "refused"));
        assert_eq!(error.to_string(), "full");
        assert_eq!(error.headers().len(), 2);
        let error = error.with_field("model");
        assert_eq!((error.status(), error.field()), (429, Some("model")));
    }
}
