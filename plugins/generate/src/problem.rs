//! How an error reaches the client: problem details after RFC 9457, with a stable `code`.

use serde_json::json;

/// An error that has an HTTP status and a name that clients may match on.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub status: u16,
    /// Stable and in kebab-case; what the case is about never changes.
    pub code: &'static str,
    /// What happened, and what was expected.
    pub detail: String,
    /// When trying again can succeed.
    pub retry_after_ms: Option<u32>,
}

impl Problem {
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        Problem {
            status,
            code,
            detail: detail.into(),
            retry_after_ms: None,
        }
    }

    /// The client's request is wrong.
    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(400, code, detail)
    }

    /// The value of the `Retry-After` header: whole seconds, rounded up.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1000))
    }

    /// The body, of type `application/problem+json`.
    pub fn to_json(&self) -> String {
        json!({
            "type": "about:blank",
            "title": title(self.status),
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        })
        .to_string()
    }
}

/// The reason phrase of a status, which is what RFC 9457 wants as the title of `about:blank`.
fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        499 => "Client Closed Request",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_written_with_all_its_members() {
        assert_eq!(
            Problem::bad_request("empty-prompt", "`prompt` is empty").to_json(),
            r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"empty-prompt","detail":"`prompt` is empty"}"#
        );
    }

    #[test]
    fn retry_after_is_rounded_up() {
        for (ms, seconds) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (u32::MAX, 4_294_968)] {
            let mut problem = Problem::new(429, "refused", "");
            problem.retry_after_ms = Some(ms);
            assert_eq!(problem.retry_after_seconds(), Some(seconds));
        }
        assert_eq!(Problem::new(429, "refused", "").retry_after_seconds(), None);
    }
}
