//! Why a request to a hub failed, and whether trying again may help.

use crate::Error;
use crate::http_client::{RequestError, Transient, tls_error};
use http::response::Parts;

/// The error for a response with a failure status. `has_token`: the request had a token. Without `file`, the request
/// was for the list of files.
pub(super) fn refusal(
    endpoint: &str,
    has_token: bool,
    repo: &str,
    file: Option<&str>,
    head: &Parts,
) -> RequestError {
    let status = head.status;
    let page = format!("{endpoint}/{repo}");
    let gated = head
        .headers
        .get("x-error-code")
        .is_some_and(|code| code == "GatedRepo");
    if let Some(failure) = Transient::of_response(endpoint, head) {
        return RequestError::Transient(failure);
    }
    let message = match (status.as_u16(), has_token) {
        (401 | 403, false) if gated => format!(
            "{repo} is gated ({status}): accept its terms at {page}, and set HF_TOKEN to a token of that account"
        ),
        (401 | 403, false) => format!(
            "{endpoint} refuses access to {repo} ({status}): it does not exist, or is private or gated; check the name, \
             or set HF_TOKEN to a token that may read it"
        ),
        (401, true) => format!(
            "{endpoint} refuses HF_TOKEN ({status}); set HF_TOKEN to a valid token, or unset it for public models"
        ),
        (403, true) => format!(
            "the account of HF_TOKEN may not read {repo} ({status}); accept its terms at {page}, or give the token \
             the permission to read it"
        ),
        (404, _) => match file {
            Some(file) => format!("{repo} has no file {file} any more; try again"),
            None => format!("{endpoint} has no repository {repo}; check the name"),
        },
        _ => format!("{endpoint} answers {status} to a request for {repo}; check HF_ENDPOINT"),
    };
    RequestError::Final(Error::failed(message))
}

/// The error for a failure of the HTTP client.
pub(super) fn failure(error: &ureq::Error) -> RequestError {
    use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
    use ureq::Error as Client;
    let message = match (tls_error(error), error) {
        (Some(InvalidCertificate(error)), _) => format!(
            "the hub's certificate is not trusted ({error}); name a file with that of its issuer in SSL_CERT_FILE"
        ),
        (Some(InvalidMessage(_) | PeerIncompatible(_)), _) => {
            format!("cannot use TLS with the hub ({error}); check HF_ENDPOINT")
        }
        (_, Client::BodyExceedsLimit(_)) => format!(
            "the repository's list of files is larger than {} MiB; check HF_ENDPOINT",
            super::MAX_LIST_BYTES >> 20
        ),
        (_, Client::Http(_) | Client::BadUri(_) | Client::LargeResponseHeader(..)) => {
            format!("cannot use the hub ({error}); check HF_ENDPOINT")
        }
        _ => return RequestError::Transient(Transient::of_error(error)),
    };
    RequestError::Final(Error::failed(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passing_failures_are_tried_again() {
        let is_transient =
            |error: ureq::Error| matches!(failure(&error), RequestError::Transient(_));
        for kind in [
            std::io::ErrorKind::ConnectionRefused,
            std::io::ErrorKind::TimedOut,
        ] {
            assert!(is_transient(ureq::Error::Io(kind.into())), "{kind}");
        }
        assert!(is_transient(ureq::Error::HostNotFound));
        let unknown = rustls::CertificateError::UnknownIssuer;
        assert!(!is_transient(ureq::Error::Rustls(unknown.into())));
        assert!(!is_transient(ureq::Error::BadUri("x".to_owned())));
        let plain = rustls::Error::from(rustls::InvalidMessage::InvalidContentType);
        assert!(!is_transient(ureq::Error::Io(std::io::Error::other(plain))));
        for (status, expected) in [
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (410, false),
            (408, true),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let response = http::Response::builder().status(status).body(());
            let (head, ()) = response.expect("a response").into_parts();
            let error = refusal("https://a.example", true, "a/b", None, &head);
            let is_transient = matches!(error, RequestError::Transient(_));
            assert_eq!(is_transient, expected, "{status}");
        }
    }
}
