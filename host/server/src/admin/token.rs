//! Who may change things: whoever has the token.

use super::host;
use crate::problem::Problem;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Shortest token: what is shorter can be tried out.
const SHORTEST: usize = 16;
/// Longest token.
const LONGEST: usize = 1024;

/// A secret that whoever changes deployments has to send.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// The text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the admin token has to have from {SHORTEST} to {LONGEST} characters, none of them a blank; e.g. the output of 'openssl rand -hex 32'"
)]
pub struct TokenError;

impl Token {
    /// The token with this text, blanks around it left away.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain || !(SHORTEST..=LONGEST).contains(&text.len()) {
            return Err(TokenError);
        }
        Ok(Token(hash(text.as_bytes())))
    }

    /// Compares in a time that tells nothing: of hashes, so that lengths don't show either.
    fn is(&self, text: &[u8]) -> bool {
        self.0.ct_eq(&hash(text)).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Who can reach the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The owner of the file that is its socket: the system sees to that.
    Owner,
    /// Whoever is on this machine, which the operator has called so.
    Machine(String),
    /// Other machines too.
    Network,
}

/// What the admin listener asks of whom.
#[derive(Debug)]
pub(crate) struct Guard {
    token: Option<Token>,
    reach: Reach,
}

impl Guard {
    pub(crate) fn new(token: Option<Token>, reach: Reach) -> Self {
        Guard { token, reach }
    }

    /// Whether the request is for a host that this listener is.
    pub(crate) fn is_meant<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        match &self.reach {
            Reach::Machine(own) => host::check(own, request.uri(), request.headers()),
            Reach::Owner | Reach::Network => Ok(()),
        }
    }

    /// Whether the request may look at numbers: anybody on this machine may.
    pub(crate) fn may_look(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self.reach {
            Reach::Owner | Reach::Machine(_) => Ok(()),
            Reach::Network => self.may_change(headers),
        }
    }

    /// Whether the request may unload models and drop what is kept: where there is a token, who has it;
    /// else anybody on this machine.
    pub(crate) fn may_clear(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match (&self.reach, &self.token) {
            (Reach::Machine(_), None) => Ok(()),
            _ => self.may_change(headers),
        }
    }

    /// Whether the request may see and change deployments.
    pub(crate) fn may_change(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.reach == Reach::Owner {
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
            (Some(token), Some(sent)) if token.is(sent) => Ok(()),
            _ => Err(Problem::no_token()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const GOOD: &str = "0123456789abcdef";

    fn with(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    fn machine() -> Reach {
        Reach::Machine("127.0.0.1".to_owned())
    }

    #[test]
    fn only_the_token_opens() {
        let guard = Guard::new(
            Some(Token::new(" 0123456789abcdef\n").expect("good")),
            machine(),
        );
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef"] {
            assert!(guard.may_change(&with(good)).is_ok(), "{good}");
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
            let problem = guard.may_change(&with(bad)).expect_err(bad);
            assert_eq!(problem.status(), 401, "{bad}");
        }
        assert!(guard.may_change(&HeaderMap::new()).is_err());
        assert!(guard.may_look(&HeaderMap::new()).is_ok());
        assert!(guard.may_clear(&HeaderMap::new()).is_err());
    }

    #[test]
    fn the_owner_of_the_socket_is_not_asked() {
        for token in [None, Some(Token::new(GOOD).expect("good"))] {
            let guard = Guard::new(token, Reach::Owner);
            assert!(guard.may_change(&HeaderMap::new()).is_ok());
            assert!(guard.may_clear(&HeaderMap::new()).is_ok());
            assert!(guard.may_look(&HeaderMap::new()).is_ok());
        }
    }

    #[test]
    fn from_other_machines_nothing_goes_without_it() {
        let guard = Guard::new(Some(Token::new(GOOD).expect("good")), Reach::Network);
        assert!(guard.may_look(&HeaderMap::new()).is_err());
        assert!(guard.may_look(&with("Bearer 0123456789abcdef")).is_ok());
    }

    #[test]
    fn without_a_token_nobody_changes_anything() {
        let guard = Guard::new(None, machine());
        assert!(guard.may_change(&with("Bearer 0123456789abcdef")).is_err());
        assert!(guard.may_change(&with("Bearer ")).is_err());
        assert!(guard.may_clear(&HeaderMap::new()).is_ok());
        assert!(
            Guard::new(None, Reach::Network)
                .may_clear(&HeaderMap::new())
                .is_err()
        );
    }

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(Token::new(bad).is_err(), "{bad}");
        }
    }
}
