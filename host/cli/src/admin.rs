//! The admin listener of a server: its address, and connections and requests to it.

mod client;
mod tls;

pub(crate) use client::{AdminClient, Outgoing, RequestBody, exchange};
pub(crate) use tls::certificates;

use crate::Error;
use clap::Args;
use http::uri::Authority;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

const EXPECTED: &str = "write http://HOST:PORT, e.g. http://127.0.0.1:8081, https://HOST:PORT or \
                        unix:PATH";

#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// Admin listener of the server: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(
        long = "admin",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    pub(crate) address: Address,
    /// PEM certificate of the server or its issuer, for https [default: those that the system trusts]
    #[arg(long = "admin-ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

impl AdminArgs {
    /// Opens a connection; the caller sets the timeout. The error is `refused` if nothing accepts it.
    pub(crate) async fn connect(&self, refused: &str) -> Result<Connection, Error> {
        let tcp = async |authority: &Authority| {
            let stream = TcpStream::connect(authority.as_str()).await;
            stream.map_err(Error::context(refused))
        };
        if self.ca.is_some() && !matches!(self.address, Address::Https(_)) {
            return Err(Error::usage(format!(
                "--admin-ca is for https://HOST:PORT, not for {}",
                self.address
            )));
        }
        let connection: Connection = match &self.address {
            Address::Http(authority) => Box::new(tcp(authority).await?),
            Address::Https(authority) => {
                let stream = tcp(authority).await?;
                let stream = tls::connect(stream, authority, self.ca.as_deref()).await;
                Box::new(stream.map_err(|cause| {
                    let message = format!(
                        "cannot verify {}: {cause}; name its certificate or that of its issuer with --admin-ca FILE",
                        self.address
                    );
                    Error::context(message)(cause)
                })?)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                Box::new(stream.map_err(Error::context(refused))?)
            }
        };
        Ok(connection)
    }
}

impl From<Address> for AdminArgs {
    fn from(address: Address) -> Self {
        AdminArgs { address, ca: None }
    }
}

/// `http://HOST:PORT`, whose scheme is optional, `https://HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Http(Authority),
    Https(Authority),
    Unix(PathBuf),
}

/// A connection of any kind.
pub(crate) type Connection = Box<dyn Stream>;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// The `Host` of requests.
    pub(crate) fn host(&self) -> &str {
        match self {
            Address::Http(authority) | Address::Https(authority) => authority.as_str(),
            Address::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Http(authority) => write!(f, "http://{authority}"),
            Address::Https(authority) => write!(f, "https://{authority}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(EXPECTED.to_owned()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let (bare, kind): (_, fn(Authority) -> Self) = match text.strip_prefix("https://") {
            Some(bare) => (bare, Address::Https),
            None => (text.strip_prefix("http://").unwrap_or(text), Address::Http),
        };
        let authority = bare.strip_suffix('/').unwrap_or(bare).parse::<Authority>();
        authority
            .ok()
            .filter(|authority| authority.port_u16().is_some() && !authority.as_str().contains('@'))
            .map(kind)
            .ok_or_else(|| EXPECTED.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse() {
        for (text, expected) in [
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
            ("http://localhost:1/", "http://localhost:1"),
            ("[::1]:8081", "http://[::1]:8081"),
            ("https://a:1/", "https://a:1"),
            ("unix:/run/corral/admin.sock", "unix:/run/corral/admin.sock"),
            ("unix:a:1", "unix:a:1"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), expected);
        }
        for text in [
            "",
            "a",
            "https://a",
            "http://a:1/b",
            "a@b:1",
            "a:99999",
            "http://",
            "unix:",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.contains("http://HOST:PORT"), "{text}: {error}");
        }
    }
}
