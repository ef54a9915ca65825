//! What the clients of HTTP servers on the network share: hubs of models, and registries of artifacts.
//!
//! Waits are bounded. A client follows redirects itself, since it sends what authorizes it to one origin only. Requests to
//! this machine use no proxy, which would carry secrets in clear text. Failures that may pass are tried again.

use crate::Error;
use http::Uri;
use http::header::RETRY_AFTER;
use http::response::Parts;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Bound of resolving a name, and of connecting with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest pause of a server.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Redirects of a request.
pub const MAX_REDIRECTS: usize = 5;
/// Failures in a row after which a client gives up.
const MAX_FAILURES: u32 = 5;
/// Wait after the first failure; each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Longest wait, whatever the server asks for.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug)]
pub enum RequestError {
    /// Trying again does not help.
    Final(Error),
    /// The network or the server failed.
    Transient(Transient),
}

/// A failure that may pass.
#[derive(Debug)]
pub struct Transient {
    pub cause: String,
    /// A wait that the server asks for.
    pub retry_after: Option<Duration>,
}

impl Transient {
    pub fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            retry_after: None,
        }
    }

    /// The failure of an error of the client that may pass.
    pub fn of_error(error: &ureq::Error) -> Self {
        match error {
            ureq::Error::Io(error) => Self::new(error.to_string()),
            error => Self::new(error.to_string()),
        }
    }

    /// The failure that a response of `server` means, if it may pass.
    pub fn of_response(server: &str, head: &Parts) -> Option<Self> {
        if !matches!(head.status.as_u16(), 408 | 429 | 500..=599) {
            return None;
        }
        let seconds = head.headers.get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
        Some(Self {
            cause: format!("{server} answers {}", head.status),
            retry_after: seconds.map(Duration::from_secs),
        })
    }
}

/// What is wrong with TLS, if that is why a request failed.
pub fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|cause| cause.downcast_ref()),
        _ => None,
    }
}

/// A server: what may see the secrets of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub scheme: String,
    pub host: String,
    pub port: u16,
}

/// A client that trusts these certificates, follows no redirects, and returns responses of every status.
pub fn agent(trusted: &[CertificateDer<'_>]) -> Agent {
    let certificates = trusted.iter();
    let certificates = certificates.map(|one| Certificate::from_der(one).to_owned());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::from(certificates.collect::<Vec<_>>()))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("corral/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .timeout_per_write(Some(READ_TIMEOUT))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .build()
        .into()
}

/// Runs `attempt` again after failures that may pass, each time after `wait`, which fails after too many.
pub fn retried<T>(
    wait: impl Fn(&Transient, u32) -> Result<(), Error>,
    mut attempt: impl FnMut() -> Result<T, RequestError>,
) -> Result<T, Error> {
    let mut failures = 0;
    loop {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(RequestError::Final(error)) => return Err(error),
            Err(RequestError::Transient(failure)) => {
                failures += 1;
                wait(&failure, failures)?;
            }
        }
    }
}

/// Waits before another attempt; fails after too many. `what` is not possible, as notes and the error say; `advice` is for the
/// error.
pub fn wait_after(
    failure: &Transient,
    failures: u32,
    note: &dyn Fn(String),
    what: &str,
    advice: &str,
) -> Result<(), Error> {
    let Transient { cause, retry_after } = failure;
    if failures >= MAX_FAILURES {
        return Err(Error::failed(format!(
            "{what}: {cause}, {failures} times in a row; {advice}"
        )));
    }
    let delay = FIRST_DELAY * 2_u32.pow(failures - 1);
    let delay = retry_after.map_or(delay, |asked| asked.clamp(delay, MAX_DELAY));
    note(format!(
        "{what}: {cause}; trying again in {:.1} s",
        delay.as_secs_f64()
    ));
    std::thread::sleep(delay);
    Ok(())
}

impl Origin {
    pub fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?;
        let port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        Some(Self {
            scheme: scheme.to_owned(),
            host: uri.host().filter(|host| !host.is_empty())?.to_lowercase(),
            port: uri.port_u16().unwrap_or(port),
        })
    }

    /// Whether nobody on the network reads what is sent.
    pub fn is_private(&self) -> bool {
        self.scheme == "https" || self.is_loopback()
    }

    /// Whether it is on this machine.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.trim_matches(['[', ']']).parse();
        self.host == "localhost"
            || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    }
}

/// The address that `location` means in a response from `uri`: a whole one, or a path.
pub fn resolve(uri: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    match location {
        _ if location.starts_with("//") => format!("{scheme}:{location}").parse().ok(),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}").parse().ok(),
        _ => location.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_differ_by_scheme_host_and_port() {
        let origin = |text: &str| Origin::of(&text.parse().expect(text));
        assert_eq!(
            origin("https://A.example/x"),
            origin("https://a.example:443")
        );
        for other in [
            "http://a.example:443",
            "https://a.example:444",
            "https://b.a.example",
        ] {
            assert_ne!(origin("https://a.example"), origin(other), "{other}");
        }
        assert_eq!(origin("ftp://a.example"), None);
        let is_private = |text: &str| origin(text).expect(text).is_private();
        assert!(is_private("https://a.example") && is_private("http://[::1]:5"));
        assert!(is_private("http://127.0.0.1") && !is_private("http://127.0.0.1.example"));
        let is_loopback = |text: &str| origin(text).expect(text).is_loopback();
        for here in ["http://localhost:1", "https://127.1.2.3", "http://[::1]"] {
            assert!(is_loopback(here), "{here}");
        }
        for other in ["http://localhost.example", "https://10.0.0.1", "http://a"] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn locations_are_addresses_or_paths() {
        let base: Uri = "https://a.example:8443/b/c?d".parse().expect("an address");
        for (location, expected) in [
            ("/e?f", Some("https://a.example:8443/e?f")),
            ("//g.example/e", Some("https://g.example/e")),
            ("http://h.example/e", Some("http://h.example/e")),
        ] {
            let resolved = resolve(&base, location).map(|uri| uri.to_string());
            assert_eq!(resolved.as_deref(), expected, "{location}");
        }
    }
}
