//! Why a request to a registry failed, and whether trying again may help.

use super::{Access, RepositoryClient};
use crate::Error;
use crate::http_client::{RequestError, Transient, tls_error};
use crate::terminal::printable;
use http::StatusCode;
use http::response::Parts;
use serde_json::Value;
use std::io::Read;
use ureq::Body;

/// Bytes of an error's body that are read.
const MAX_ERROR_BYTES: u64 = 8 << 10;

impl RepositoryClient {
    /// The error for a response with a failure status.
    pub(super) fn refusal(&self, head: &Parts, body: Body) -> RequestError {
        if let Some(failure) = Transient::of_response(&format!("the registry {}", self.host), head)
        {
            return RequestError::Transient(failure);
        }
        let (host, repository, status) = (&self.host, &self.repository, head.status);
        let action = match self.access {
            Access::Pull => "pull from",
            Access::Push => "push to",
        };
        let message = match (status, self.credentials.shown()) {
            (StatusCode::UNAUTHORIZED, None) => format!(
                "the registry {host} wants a login to {action} {repository} ({status}); run 'docker login {host}', or \
                 give --registry-user and --registry-password-file"
            ),
            (StatusCode::UNAUTHORIZED, Some(who)) => {
                format!("the registry {host} refuses the {who} ({status}); check both")
            }
            (StatusCode::FORBIDDEN, _) => format!(
                "the registry {host} does not let this login {action} {repository} ({status}); ask its operator"
            ),
            (StatusCode::NOT_FOUND, _) => format!(
                "the registry {host} does not let you {action} {repository} ({status}); check the name"
            ),
            _ => format!(
                "the registry {host} answers {status} to a request for {repository}{}; check its address{}",
                reason(body),
                match self.origin.scheme.as_str() {
                    "http" => ", and if it uses TLS, name its certificate with --registry-ca",
                    _ => "",
                }
            ),
        };
        RequestError::Final(Error::failed(message))
    }

    /// The error for a failure of the HTTP client.
    pub(super) fn failure(&self, error: &ureq::Error) -> RequestError {
        use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
        use ureq::Error as Client;
        let host = &self.host;
        let message = match (tls_error(error), error) {
            (Some(InvalidCertificate(error)), _) => format!(
                "the certificate of the registry {host} is not trusted ({error}); name that of its issuer with \
                 --registry-ca"
            ),
            (Some(InvalidMessage(_) | PeerIncompatible(_)), _) => format!(
                "cannot use TLS with the registry {host} ({error}); if it has none, allow that with --registry-http"
            ),
            (_, Client::Http(_) | Client::BadUri(_) | Client::LargeResponseHeader(..)) => {
                format!("cannot use the registry {host} ({error}); check its address")
            }
            _ => return RequestError::Transient(Transient::of_error(error)),
        };
        RequestError::Final(Error::failed(message))
    }

    pub(super) fn invalid_address(&self, address: &str) -> RequestError {
        let address: String = printable(address).chars().take(200).collect();
        RequestError::Final(Error::failed(format!(
            "the registry {} names the address '{address}', which is not valid or not as safe as its own; check its \
             configuration",
            self.host
        )))
    }
}

/// What a registry says about a failure.
fn reason(body: Body) -> String {
    let mut bytes = Vec::new();
    let read = body
        .into_reader()
        .take(MAX_ERROR_BYTES)
        .read_to_end(&mut bytes);
    let value: Value = read
        .ok()
        .and_then(|_| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    match value["errors"][0]["message"].as_str() {
        Some(message) => format!(": {}", printable(message)),
        None => String::new(),
    }
}
