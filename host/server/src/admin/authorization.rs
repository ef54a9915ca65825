//! Authorization of requests to the admin listener, by the admin token.

use super::host_check;
use crate::problem::Problem;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Shortest token; shorter ones can be guessed.
const MIN_LENGTH: usize = 16;
/// Longest token.
const MAX_LENGTH: usize = 1024;

/// The secret that authorizes changes of deployments. Holds only a hash.
#[derive(Clone)]
pub struct AdminToken([u8; 32]);

/// The text is not a valid admin token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the admin token must have {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without blanks; e.g. the output of 'openssl rand -hex 32'"
)]
pub struct AdminTokenError;

impl AdminToken {
    /// Creates a token from `text`, without surrounding blanks.
    pub fn new(text: &str) -> Result<Self, AdminTokenError> {
        let text = text.trim();
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !printable || !(MIN_LENGTH..=MAX_LENGTH).contains(&text.len()) {
            return Err(AdminTokenError);
        }
        Ok(AdminToken(hash(text.as_bytes())))
    }

    /// Compares hashes in constant time, so that neither content nor length leaks.
    fn matches(&self, text: &[u8]) -> bool {
        self.0.ct_eq(&hash(text)).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Who can connect to the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminExposure {
    /// The owner of the Unix domain socket; its file mode enforces that.
    Owner,
    /// Every process of this machine, whose host name the operator gave.
    Machine(String),
    /// Other machines too.
    Network,
}

/// Decides which requests the admin listener answers.
#[derive(Debug)]
pub(crate) struct AdminGuard {
    token: Option<AdminToken>,
    exposure: AdminExposure,
}

impl AdminGuard {
    pub(crate) fn new(token: Option<AdminToken>, exposure: AdminExposure) -> Self {
        AdminGuard { token, exposure }
    }

    /// Checks that the request names a host of this listener.
    pub(crate) fn check_host<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match &self.exposure {
            AdminExposure::Machine(own) => host_check::check(own, request.uri(), request.headers()),
            // A browser may reach a socket through a tunnel. Programs that read metrics name any host.
            AdminExposure::Owner if !reads => {
                host_check::check("", request.uri(), request.headers())
            }
            AdminExposure::Owner | AdminExposure::Network => Ok(()),
        }
    }

    /// Checks whether the request may read status and metrics: from this machine, every request may.
    pub(crate) fn check_read(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self.exposure {
            AdminExposure::Owner | AdminExposure::Machine(_) => Ok(()),
            AdminExposure::Network => self.check_token(headers),
        }
    }

    /// Checks whether the request may load and unload models and drop cached prefixes: with the token,
    /// or from this machine if there is none.
    pub(crate) fn check_manage_models(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match (&self.exposure, &self.token) {
            (AdminExposure::Machine(_), None) => Ok(()),
            _ => self.check_token(headers),
        }
    }

    /// Who sent a request, for the log.
    pub(crate) fn actor(&self, headers: &HeaderMap) -> &'static str {
        match (&self.exposure, &self.token, self.check_token(headers)) {
            (AdminExposure::Owner, ..) => "unix-socket",
            (_, Some(_), Ok(())) => "admin-token",
            (AdminExposure::Machine(_), None, _) => "this-machine",
            _ => "nobody",
        }
    }

    /// Whether there is a token that changes need.
    pub(crate) fn requires_token(&self) -> bool {
        self.token.is_some() && self.exposure != AdminExposure::Owner
    }

    /// Whether any request can pass [`AdminGuard::check_token`].
    pub(crate) fn can_authorize(&self) -> bool {
        self.token.is_some() || self.exposure == AdminExposure::Owner
    }

    /// Checks that the request has the token, which reading and changing deployments requires. The owner of a Unix
    /// domain socket needs none.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.exposure == AdminExposure::Owner {
            return Ok(());
        }
        let sent = headers
            .get(AUTHORIZATION)
            .map(|value| value.as_bytes())
            .and_then(|value| match value.split_at_checked(7) {
                Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(token),
                _ => None,
            });
        match (&self.token, sent) {
            (Some(token), Some(sent)) if token.matches(sent) => Ok(()),
            _ => Err(Problem::token_required()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const GOOD: &str = "0123456789abcdef";

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    fn machine() -> AdminExposure {
        AdminExposure::Machine("127.0.0.1".to_owned())
    }

    #[test]
    fn only_the_token_authorizes_deploys() {
        let guard = AdminGuard::new(
            Some(AdminToken::new(" 0123456789abcdef\n").expect("good")),
            machine(),
        );
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(guard.check_token(&headers(good)).is_ok(), "{good}");
        }
        for bad in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer ",
            "Bearer",
            "Basic 0123456789abcdef",
            "",
        ] {
            let problem = guard.check_token(&headers(bad)).expect_err(bad);
            assert_eq!(problem.status(), 401, "{bad}");
        }
        assert!(guard.check_token(&HeaderMap::new()).is_err());
        assert!(guard.check_read(&HeaderMap::new()).is_ok());
        assert!(guard.check_manage_models(&HeaderMap::new()).is_err());
    }

    #[test]
    fn owner_of_unix_socket_needs_no_token() {
        for token in [None, Some(AdminToken::new(GOOD).expect("good"))] {
            let guard = AdminGuard::new(token, AdminExposure::Owner);
            assert!(guard.check_token(&HeaderMap::new()).is_ok());
            assert!(guard.check_manage_models(&HeaderMap::new()).is_ok());
            assert!(guard.check_read(&HeaderMap::new()).is_ok());
        }
    }

    #[test]
    fn other_machines_need_the_token_to_read() {
        let guard = AdminGuard::new(
            Some(AdminToken::new(GOOD).expect("good")),
            AdminExposure::Network,
        );
        assert!(guard.check_read(&HeaderMap::new()).is_err());
        assert!(
            guard
                .check_read(&headers("Bearer 0123456789abcdef"))
                .is_ok()
        );
    }

    #[test]
    fn without_token_no_request_may_deploy() {
        let guard = AdminGuard::new(None, machine());
        assert!(
            guard
                .check_token(&headers("Bearer 0123456789abcdef"))
                .is_err()
        );
        assert!(guard.check_token(&headers("Bearer ")).is_err());
        assert!(guard.check_manage_models(&HeaderMap::new()).is_ok());
        assert!(
            AdminGuard::new(None, AdminExposure::Network)
                .check_manage_models(&HeaderMap::new())
                .is_err()
        );
    }

    #[test]
    fn short_tokens_are_refused() {
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(AdminToken::new(bad).is_err(), "{bad}");
        }
    }
}
