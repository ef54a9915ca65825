//! The admin listener of a server: its address, and connections and requests to it.

mod client;

pub(crate) use client::{AdminClient, Outgoing, RequestBody, exchange};

use crate::{Error, admin_token};
use clap::Args;
use corral_client_tls::client_config;
use http::uri::Authority;
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const EXPECTED: &str = "write http://HOST:PORT, e.g. http://127.0.0.1:8081, https://HOST:PORT or \
                        unix:PATH";

/// The admin listener and what a client needs for it, shared by all commands that use one.
#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// Admin listener of the server: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(
        long = "admin",
        value_name = "URL",
        env = "CORRAL_ADMIN",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8081",
        help_heading = "Server"
    )]
    pub(crate) address: Address,
    /// PEM certificate of the server or its issuer, for https [default: those that the system trusts]
    #[arg(long = "admin-ca", value_name = "FILE", help_heading = "Server")]
    pub(crate) ca: Option<PathBuf>,
    /// File with the admin token; unix:PATH needs none [default: the token in CORRAL_ADMIN_TOKEN]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    /// Store of a server on this machine, whose file admin-token has the token
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with = "token_file",
        help_heading = "Server"
    )]
    pub(crate) store: Option<PathBuf>,
}

impl AdminArgs {
    /// The admin token that the arguments or the environment name.
    pub(crate) fn token(&self) -> Result<Option<String>, Error> {
        let of_store = self.store.as_deref().map(admin_token::file_in);
        admin_token::read_text(self.token_file.as_deref().or(of_store.as_deref()))
    }

    /// Refuses `--admin-ca` unless one of these addresses uses it.
    pub(crate) fn check_ca(&self, addresses: &[&Address]) -> Result<(), Error> {
        let is_https = |address: &&Address| matches!(address, Address::Https(_));
        match self.ca.is_none() || addresses.iter().any(is_https) {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "--admin-ca is for https://HOST:PORT, not for {}",
                self.address
            ))),
        }
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
pub(crate) type AdminStream = Box<dyn Stream>;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// Opens a connection; the caller sets the timeout. The error is `refused` if nothing accepts it.
    async fn connect(&self, ca: Option<&Path>, refused: &str) -> Result<AdminStream, Error> {
        let tcp = async |authority: &Authority| {
            let stream = TcpStream::connect(authority.as_str()).await;
            stream.map_err(Error::context(refused))
        };
        let connection: AdminStream = match self {
            Address::Http(authority) => Box::new(tcp(authority).await?),
            Address::Https(authority) => {
                let stream = tcp(authority).await?;
                let stream = connect_tls(stream, authority, ca).await;
                Box::new(stream.map_err(|cause| {
                    let message = format!(
                        "cannot verify {self}: {cause}; name its certificate or that of its issuer with --admin-ca FILE"
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

    /// The `Host` of requests.
    pub(crate) fn host(&self) -> &str {
        match self {
            Address::Http(authority) | Address::Https(authority) => authority.as_str(),
            Address::Unix(_) => "localhost",
        }
    }
}

/// Starts TLS with this host, whose certificate must be in `ca` or lead to one there, or to one that the system trusts.
async fn connect_tls(
    stream: TcpStream,
    authority: &Authority,
    ca: Option<&Path>,
) -> io::Result<TlsStream<TcpStream>> {
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let name = ServerName::try_from(address.unwrap_or(host).to_owned());
    let connector = TlsConnector::from(Arc::new(client_config(ca)?));
    connector
        .connect(name.map_err(io::Error::other)?, stream)
        .await
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
