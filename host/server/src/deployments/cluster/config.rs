//! Where a cluster's NATS is, and how to connect to it.

use async_nats::ServerAddr;
use std::fmt;
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
    fn servers_are_shown_without_passwords() {
        let servers: ClusterServers = "nats://a:secret@one:4222, two,tls://[::1]:9"
            .parse()
            .expect("valid");
        let shown = "nats://one:4222,nats://two:4222,tls://[::1]:9";
        assert_eq!(servers.to_string(), shown);
        assert_eq!(format!("{servers:?}"), shown);
        for bad in ["", "http://a", "ws://a", "nats://", "a,,b"] {
            assert!(bad.parse::<ClusterServers>().is_err(), "{bad}");
        }
    }
}
