//! Where a cluster's NATS is, and how to connect to it.

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::io;
use std::str::FromStr;

/// Most addresses.
const MAX_SERVERS: usize = 16;

/// How a host connects to the NATS of its cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    /// Addresses of the servers.
    pub servers: ClusterServers,
    /// Content of a credentials file, with a JWT and the seed of a key.
    pub credentials: Option<String>,
    /// For connections with TLS.
    pub tls: Option<rustls::ClientConfig>,
    /// Whether connections without TLS are refused.
    pub require_tls: bool,
}

/// Addresses of NATS servers of one cluster. Displays them without passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterServers(pub(super) Vec<ServerAddr>);

/// The text names no NATS servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write nats://HOST:PORT or tls://HOST:PORT, several of one cluster with commas")]
pub struct ClusterServersError;

impl ClusterServers {
    /// The first user, or token, that stands before a host, and the password.
    pub(super) fn user_and_password(&self) -> Option<(String, Option<String>)> {
        // A URL has `%40` for `@`.
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        self.0.iter().find_map(|server| {
            let user = server.username()?;
            Some((decode(user), server.password().map(decode)))
        })
    }

    /// The addresses without users and passwords, which the client of NATS may log.
    pub(super) fn addresses(&self) -> io::Result<Vec<ServerAddr>> {
        let without_password = |server: &ServerAddr| {
            let mut url = server.clone().into_inner();
            url.set_username("")
                .and_then(|()| url.set_password(None))
                .map_err(|()| io::Error::other(ClusterServersError))?;
            ServerAddr::from_url(url)
        };
        self.0.iter().map(without_password).collect()
    }
}

impl FromStr for ClusterServers {
    type Err = ClusterServersError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut servers = Vec::new();
        for address in text.split(',') {
            let address = address.trim();
            let address = address.parse::<ServerAddr>();
            let address = address.map_err(|_| ClusterServersError)?;
            let is_known = matches!(address.scheme(), "nats" | "tls");
            if !is_known || address.host().is_empty() || servers.len() >= MAX_SERVERS {
                return Err(ClusterServersError);
            }
            servers.push(address);
        }
        Ok(ClusterServers(servers))
    }
}

impl fmt::Display for ClusterServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let host = address.host();
            let (open, close) = if host.contains(':') {
                ("[", "]")
            } else {
                ("", "")
            };
            write!(
                f,
                "{comma}{}://{open}{host}{close}:{}",
                address.scheme(),
                address.port()
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_decoded() {
        let login = |text: &str| {
            let servers: ClusterServers = text.parse().expect("valid");
            let (user, password) = servers.user_and_password()?;
            Some(format!("{user} {}", password.unwrap_or_default()))
        };
        for (text, expected) in [
            ("nats://one,two", None),
            ("nats://one,nats://a:p%40s%3As@two", Some("a p@s:s")),
            ("nats://t%2Fken@one", Some("t/ken ")),
        ] {
            assert_eq!(login(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn servers_are_shown_without_passwords() {
        let servers: ClusterServers = "nats://a:secret@one:4222, two,tls://[::1]:9"
            .parse()
            .expect("valid");
        let shown = "nats://one:4222,nats://two:4222,tls://[::1]:9";
        assert_eq!(servers.to_string(), shown);
        assert_eq!(format!("{servers:?}"), shown);
        let addresses = format!("{:?}", servers.addresses().expect("valid"));
        assert!(!addresses.contains("secret"), "{addresses}");
        for bad in ["", "http://a", "ws://a", "nats://", "a,,b"] {
            assert!(bad.parse::<ClusterServers>().is_err(), "{bad}");
        }
    }
}
