//! Headers that only a trusted proxy may set: whose turn a request takes, and when its first token is due.
//!
//! They have the names that routers of the Gateway API's inference extension send.

use crate::connection_info::ConnectionInfo;
use corral_engine::Tenant;
use http::{Extensions, HeaderMap};
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Requests with the same value share the engine's time as one tenant.
const FAIRNESS_ID: &str = "x-llm-d-inference-fairness-id";
/// Milliseconds until the first token.
const FIRST_TOKEN_MS: &str = "x-llm-d-slo-ttft-ms";
/// The numbers of tenants between those of deployments and those of API keys.
const FIRST_TENANT: u32 = 1 << 30;

/// Addresses of proxies whose headers count.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    /// Trusts proxies in these networks.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(networks.into_iter().collect())
    }

    /// What the headers of a request ask for; nothing unless a trusted proxy sent it.
    pub(crate) fn hints(&self, headers: &HeaderMap, extensions: &Extensions) -> ProxyHints {
        let connection = extensions.get::<ConnectionInfo>();
        let address = connection.and_then(|connection| connection.address);
        match address {
            Some(address) if self.contains(address.ip()) => ProxyHints::of(headers),
            _ => ProxyHints::default(),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        // A socket for both versions names IPv4 addresses as mapped ones.
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// What the headers of a trusted proxy ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyHints {
    /// Whom the engine's time is shared with.
    pub(crate) tenant: Option<Tenant>,
    /// When the first token is due.
    pub(crate) first_token: Option<Duration>,
}

impl ProxyHints {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let milliseconds = text(FIRST_TOKEN_MS).and_then(|text| text.trim().parse().ok());
        Self {
            tenant: headers.get(FAIRNESS_ID).map(|id| tenant(id.as_bytes())),
            first_token: milliseconds
                .filter(|number| *number > 0)
                .map(Duration::from_millis),
        }
    }
}

/// The tenant of a fairness id. Ids with the same hash share one.
fn tenant(id: &[u8]) -> Tenant {
    let digest = Sha256::digest(id);
    let hash = digest
        .iter()
        .take(4)
        .fold(0, |hash, byte| hash << 8 | u32::from(*byte));
    Tenant(FIRST_TENANT + hash % FIRST_TENANT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extensions(address: &str) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectionInfo {
            is_tls: false,
            address: Some(address.parse().unwrap()),
        });
        extensions
    }

    #[test]
    fn only_trusted_proxies_give_hints() {
        let networks = ["10.1.0.0/16", "fd00::/8"].map(|text| text.parse::<IpNet>().unwrap());
        let proxies = TrustedProxies::new(networks);
        let mut headers = HeaderMap::new();
        headers.insert(FAIRNESS_ID, "alice".parse().unwrap());
        headers.insert(FIRST_TOKEN_MS, "250".parse().unwrap());
        for (address, is_trusted) in [
            ("10.1.2.3:9", true),
            ("[::ffff:10.1.2.3]:9", true),
            ("[fd00::1]:9", true),
            ("10.2.0.1:9", false),
            ("[fe80::1]:9", false),
        ] {
            let hints = proxies.hints(&headers, &extensions(address));
            assert_eq!(hints.tenant.is_some(), is_trusted, "{address}");
            let first_token = is_trusted.then(|| Duration::from_millis(250));
            assert_eq!(hints.first_token, first_token, "{address}");
        }
        assert_eq!(
            proxies.hints(&headers, &Extensions::new()),
            ProxyHints::default()
        );
    }

    #[test]
    fn ids_are_tenants_of_their_own() {
        let [alice, bob] = [&b"alice"[..], b"bob"].map(tenant);
        assert_ne!(alice, bob);
        assert_eq!(alice, tenant(b"alice"));
        assert!((FIRST_TENANT..2 * FIRST_TENANT).contains(&alice.0));
    }

    #[test]
    fn invalid_values_give_no_hint() {
        for text in ["", "0", "-5", "1.5", "soon", "99999999999999999999999"] {
            let mut headers = HeaderMap::new();
            headers.insert(FIRST_TOKEN_MS, text.parse().unwrap());
            assert_eq!(ProxyHints::of(&headers).first_token, None, "{text}");
        }
    }
}
