//! What can go wrong, and how a client is told.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::raw::types;

/// Why something was not done. Whatever fails in a handler can be returned as it is: the client gets
/// problem details after RFC 9457, with the status and the code that belong to the case.
///
/// ```
/// use corral_sdk::Error;
///
/// let error = Error::new(409, "game-over", "this game has ended; begin another one");
/// assert_eq!((error.status(), error.code()), (409, "game-over"));
/// assert_eq!(error.to_string(), "this game has ended; begin another one");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong. The text says which one and what was expected. (400)
    Invalid(String),
    /// There is no model or snapshot of this name. (404)
    NotFound(String),
    /// The deployment does not grant this, or not so much. (403)
    NotGranted(String),
    /// More positions are needed than a sequence may have. (400)
    ContextFull {
        /// Positions that the call needs.
        needed: u32,
        /// Positions that a sequence may have.
        limit: u32,
    },
    /// Not now: a queue, budget or rate limit is full. (429, with `Retry-After`)
    Refused {
        /// What is full.
        reason: String,
        /// When trying again can succeed.
        retry_after: Duration,
    },
    /// The request's deadline passed. (504)
    Deadline,
    /// The client went away, or the operator cancelled the request. (499)
    Cancelled,
    /// The model, the device or the disk failed. (500)
    Failed(String),
    /// What the plugin itself has to say; see [`Error::new`].
    Problem(Box<Problem>),
}

/// An error of the plugin's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: u16,
    code: Cow<'static, str>,
    detail: String,
    headers: Vec<(String, String)>,
    member: Option<String>,
}

impl Error {
    /// An error with a status and a stable code in kebab-case, which clients may match on. `detail`
    /// says what happened and what was expected.
    pub fn new(status: u16, code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Error::Problem(Box::new(Problem {
            status,
            code: code.into(),
            detail: detail.into(),
            headers: Vec::new(),
            member: None,
        }))
    }

    /// The client's request is wrong: 400.
    pub fn bad_request(code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self::new(400, code, detail)
    }

    /// The route does not take the method: 405. `allowed` goes into the header `Allow`.
    pub fn method_not_allowed(allowed: &str, detail: impl Into<String>) -> Self {
        Self::new(405, "method-not-allowed", detail).with_header("allow", allowed)
    }

    /// `what` (a member's name, say) has the wrong type of JSON: 400.
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

    /// The same error with one more header for its answer. An error of the host's becomes one of the
    /// plugin's by it.
    pub fn with_header(self, name: &str, value: &str) -> Self {
        let mut problem = self.into_problem();
        problem.headers.push((name.to_owned(), value.to_owned()));
        Error::Problem(problem)
    }

    /// The same error, about this member of the request. An error of the host's becomes one of the
    /// plugin's by it.
    pub fn about(self, member: &str) -> Self {
        let mut problem = self.into_problem();
        problem.member = Some(member.to_owned());
        Error::Problem(problem)
    }

    /// The member of the request that it is about, by its path, such as `messages[0].role`.
    pub fn member(&self) -> Option<&str> {
        match self {
            Error::Problem(problem) => problem.member.as_deref(),
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
                member: None,
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

    /// The stable name of the case, in kebab-case.
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

    /// The headers of its answer, beside those of its body.
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

    /// The body of its answer, of type `application/problem+json`.
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

/// The reason phrase of a status, which is what RFC 9457 wants as the title of `about:blank`.
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
                "{needed} positions are needed; a sequence may have {limit} here"
            ),
            Error::Refused { reason, .. } => f.write_str(reason),
            Error::Deadline => {
                f.write_str("the request's deadline passed before the generation ended")
            }
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
    fn a_problem_is_written_with_all_its_members() {
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
            assert_eq!(
                error.headers(),
                [("retry-after".to_owned(), seconds.to_owned())]
            );
        }
        assert_eq!(Error::Deadline.headers(), []);
    }

    #[test]
    fn every_error_of_the_hosts_has_its_status() {
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
    fn a_header_keeps_the_rest() {
        let error = Error::Refused {
            reason: "full".to_owned(),
            retry_after: Duration::from_millis(1),
        }
        .with_header("x-queue", "7");
        assert_eq!((error.status(), error.code()), (429, "refused"));
        assert_eq!(error.to_string(), "full");
        assert_eq!(error.headers().len(), 2);
        let error = error.about("model");
        assert_eq!((error.status(), error.member()), (429, Some("model")));
    }
}
