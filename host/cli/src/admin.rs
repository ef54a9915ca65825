//! Where a server's admin listener is, and a connection to it.

use http::uri::Authority;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What is wrong with an address that is none.
const EXPECTED: &str = "write http://HOST:PORT, e.g. http://127.0.0.1:8081, or unix:PATH";

/// `http://HOST:PORT`, whose scheme may be left away, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Http(Authority),
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
            Address::Http(authority) => authority.as_str(),
            Address::Unix(_) => "localhost",
        }
    }

    /// A connection of its own. The bound on the time is the caller's.
    pub(crate) async fn connect(&self) -> io::Result<Connection> {
        Ok(match self {
            Address::Http(authority) => Box::new(TcpStream::connect(authority.as_str()).await?),
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Http(authority) => write!(f, "http://{authority}"),
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
        let bare = text.strip_prefix("http://").unwrap_or(text);
        let authority = bare.strip_suffix('/').unwrap_or(bare).parse::<Authority>();
        authority
            .ok()
            .filter(|authority| authority.port_u16().is_some() && !authority.as_str().contains('@'))
            .map(Address::Http)
            .ok_or_else(|| EXPECTED.to_owned())
    }
}

/// A text that a terminal shows as it is.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(shown).collect()
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
            ("unix:/run/corral/admin.sock", "unix:/run/corral/admin.sock"),
            ("unix:a:1", "unix:a:1"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), expected);
        }
        for text in [
            "",
            "a",
            "https://a:1",
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
