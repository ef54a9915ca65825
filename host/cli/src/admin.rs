//! Where a server's admin listener is, and a connection to it.

mod tls;

use crate::Error;
use clap::Args;
use http::uri::Authority;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What is wrong with an address that is none.
const EXPECTED: &str = "write http://HOST:PORT, e.g. http://127.0.0.1:8081, https://HOST:PORT or \
                        unix:PATH";

/// The admin listener that is asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct Admin {
    /// The server's admin listener, as 'corral serve' says it: http://HOST:PORT, https://HOST:PORT or
    /// unix:PATH.
    #[arg(
        long = "admin",
        value_name = "URL",
        default_value = "http://127.0.0.1:8081"
    )]
    pub(crate) address: Address,
    /// For https: the certificate of the server, or of who signed it, in PEM format. By default those that
    /// the system trusts.
    #[arg(long = "admin-ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

impl Admin {
    /// A connection of its own. The bound on the time is the caller's. Where nobody answers the user is
    /// told that they are `gone`.
    pub(crate) async fn connect(&self, gone: &str) -> Result<Connection, Error> {
        let tcp = async |authority: &Authority| {
            let connected = TcpStream::connect(authority.as_str()).await;
            connected.map_err(Error::context(gone))
        };
        if self.ca.is_some() && !matches!(self.address, Address::Https(_)) {
            let text = format!(
                "--admin-ca is for https://HOST:PORT, and not for {}",
                self.address
            );
            return Err(Error::Usage(text));
        }
        let connection: Connection = match &self.address {
            Address::Http(authority) => Box::new(tcp(authority).await?),
            Address::Https(authority) => {
                let stream = tcp(authority).await?;
                let shaken = tls::shake_hands(stream, authority, self.ca.as_deref()).await;
                Box::new(shaken.map_err(|cause| {
                    let address = &self.address;
                    let text = format!(
                        "{address} is not known to be the server: {cause}; name the certificate that it has, \
                         or who signed it: --admin-ca FILE"
                    );
                    Error::context(text)(cause)
                })?)
            }
            Address::Unix(path) => {
                let connected = UnixStream::connect(path).await;
                Box::new(connected.map_err(Error::context(gone))?)
            }
        };
        Ok(connection)
    }
}

impl From<Address> for Admin {
    fn from(address: Address) -> Self {
        Admin { address, ca: None }
    }
}

/// `http://HOST:PORT`, whose scheme may be left away, `https://HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Http(Authority),
    Https(Authority),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A connection, of whatever kind.
pub(crate) type Connection = Box<dyn Stream>;

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// What a request says in its `Host`.
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
    fn addresses_are_read() {
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
