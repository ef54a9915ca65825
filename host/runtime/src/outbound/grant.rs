//! What a deployment may call: `SCHEME://HOST[:PORT]`, and methods. And the target of a request, in the same terms.
//!
//! Hosts are compared as they are written: a name never matches an address, whatever it resolves to. Forms of addresses
//! that only some resolvers know (`127.1`, `0x7f.0.0.1`, `2130706433`) are no hosts.

use http::{Method, Uri};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use strum::{EnumString, IntoStaticStr};

/// Any host, or any port.
const ANY: &str = "*";
/// Longest host name, and longest part of one between dots.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;
/// The name of this machine, which no resolver is asked for.
pub(super) const LOCALHOST: &str = "localhost";

/// What a deployment may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundGrant {
    /// Where requests may go.
    pub url: OutboundUrl,
    /// Methods they may have; all if empty.
    pub methods: Vec<Method>,
}

/// Where requests may go: `SCHEME://HOST`, `SCHEME://HOST:PORT`, or `SCHEME://HOST:*` for any port. `HOST` is a name, an
/// address, `*.NAME` for the names below one, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundUrl {
    scheme: Scheme,
    host: HostPattern,
    /// Any if `None`.
    port: Option<u16>,
}

/// The text is no place where requests may go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not the target of a grant; write SCHEME://HOST or SCHEME://HOST:PORT without a path, e.g. \
     https://api.example.com; HOST may be *.example.com, an IP address, or *, and PORT may be *"
)]
pub struct OutboundUrlError(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Scheme {
    Http,
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    Exactly(Host),
    /// The names below this one.
    Below(String),
}

/// A host as requests and grants name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// In lower case, without a dot at its end.
    Name(String),
    Address(IpAddr),
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) scheme: Scheme,
    pub(super) host: Host,
    pub(super) port: u16,
}

impl OutboundGrant {
    pub(super) fn allows_method(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }
}

impl OutboundUrl {
    pub(super) fn matches(&self, target: &Target) -> bool {
        let host = match (&self.host, &target.host) {
            (HostPattern::Any, _) => true,
            (HostPattern::Exactly(host), other) => host == other,
            (HostPattern::Below(name), Host::Name(other)) => other
                .strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1),
            (HostPattern::Below(_), Host::Address(_)) => false,
        };
        host && self.matches_port(target)
    }

    /// Whether it names this address, so that a request to `target` may connect to it although it is not public.
    pub(super) fn names(&self, address: IpAddr, target: &Target) -> bool {
        let named = match &self.host {
            HostPattern::Exactly(Host::Address(named)) => *named == address,
            HostPattern::Exactly(Host::Name(name)) => {
                name == LOCALHOST && LOOPBACK.contains(&address)
            }
            HostPattern::Any | HostPattern::Below(_) => false,
        };
        named && self.matches_port(target)
    }

    /// Whether it names a port.
    pub(super) fn has_port(&self) -> bool {
        self.port.is_some()
    }

    fn matches_port(&self, target: &Target) -> bool {
        self.scheme == target.scheme && self.port.is_none_or(|port| port == target.port)
    }
}

/// Addresses of `localhost`.
pub(super) const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

impl FromStr for OutboundUrl {
    type Err = OutboundUrlError;

    fn from_str(text: &str) -> Result<Self, OutboundUrlError> {
        let parse = || {
            let (scheme, rest) = text.split_once("://")?;
            let scheme = scheme.parse::<Scheme>().ok()?;
            // The colons of an IPv6 address stand in brackets.
            let (host, port) = match rest.rsplit_once(':') {
                Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
                _ => (rest, None),
            };
            let port = match port {
                None => Some(scheme.default_port()),
                Some(ANY) => None,
                Some(port) => Some(parse_port(port)?),
            };
            let host = match host.strip_prefix("*.") {
                Some(name) => match Host::parse(name)? {
                    Host::Name(name) => HostPattern::Below(name),
                    Host::Address(_) => return None,
                },
                None if host == ANY => HostPattern::Any,
                None => HostPattern::Exactly(Host::parse(host)?),
            };
            Some(OutboundUrl { scheme, host, port })
        };
        parse().ok_or_else(|| OutboundUrlError(text.chars().take(MAX_NAME_BYTES).collect()))
    }
}

impl fmt::Display for OutboundUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme.name())?;
        match &self.host {
            HostPattern::Any => f.write_str(ANY)?,
            HostPattern::Exactly(host) => write!(f, "{host}")?,
            HostPattern::Below(name) => write!(f, "*.{name}")?,
        }
        match self.port {
            None => write!(f, ":{ANY}"),
            Some(port) if port == self.scheme.default_port() => Ok(()),
            Some(port) => write!(f, ":{port}"),
        }
    }
}

impl Scheme {
    fn name(self) -> &'static str {
        self.into()
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl Host {
    /// Reads a host of a URL: an IPv6 address stands in brackets.
    fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let address = rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
            return Some(Host::Address(address.into()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Host::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            (1..=MAX_LABEL_BYTES).contains(&label.len()) && label.chars().all(fits)
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let valid = name.len() <= MAX_NAME_BYTES && name.split('.').all(is_label);
        (valid && !is_number(last)).then_some(Host::Name(name))
    }
}

/// Whether resolvers take a name that ends with this label for an address, as the WHATWG's standard of URLs says.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.chars().all(|digit| digit.is_ascii_hexdigit()),
        None => label.chars().all(|digit| digit.is_ascii_digit()),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.chars().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V4(address)) => address.fmt(f),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Target {
    /// The target of a request to this URI; `None` if it names none.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let authority = uri.authority()?.as_str();
        if authority.contains('@') {
            return None;
        }
        let scheme = uri.scheme_str()?.parse::<Scheme>().ok()?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, parse_port(port)?),
            _ => (authority, scheme.default_port()),
        };
        Some(Target {
            scheme,
            host: Host::parse(host)?,
            port,
        })
    }

    /// The grant that would name this target and no other.
    pub(super) fn url(&self) -> OutboundUrl {
        OutboundUrl {
            scheme: self.scheme,
            host: HostPattern::Exactly(self.host.clone()),
            port: Some(self.port),
        }
    }

    /// The same with an address in place of the host.
    pub(super) fn at(&self, address: IpAddr) -> OutboundUrl {
        OutboundUrl {
            host: HostPattern::Exactly(Host::Address(address)),
            ..self.url()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> Option<Target> {
        Target::of(&uri.parse().ok()?)
    }

    #[test]
    fn grant_matches_scheme_host_and_port() {
        for (url, matched, others) in [
            (
                "https://api.example.com",
                &[
                    "https://api.example.com/a?b",
                    "https://API.example.com.:443/",
                ][..],
                &[
                    "http://api.example.com/",
                    "https://api.example.com:444/",
                    "https://x.api.example.com/",
                    "https://api.example.com.evil.example/",
                ][..],
            ),
            (
                "http://*.example.com:*",
                &["http://a.example.com/", "http://a.b.example.com:81/"],
                &[
                    "http://example.com/",
                    "http://badexample.com/",
                    "http://.example.com/",
                ],
            ),
            (
                "https://*",
                &["https://any.example/", "https://1.1.1.1/"],
                &["http://any.example/", "https://any.example:8443/"],
            ),
            (
                "http://[2001:DB8::1]:8080",
                &["http://[2001:db8::1]:8080/"],
                &["http://[2001:db8::2]:8080/"],
            ),
            (
                "http://127.0.0.1:8080",
                &["http://127.0.0.1:8080/"],
                &["http://[::ffff:127.0.0.1]:8080/", "http://localhost:8080/"],
            ),
        ] {
            let grant: OutboundUrl = url.parse().expect(url);
            for uri in matched {
                assert!(grant.matches(&target(uri).expect(uri)), "{url} {uri}");
            }
            for uri in others {
                let matches = target(uri).is_some_and(|target| grant.matches(&target));
                assert!(!matches, "{url} {uri}");
            }
            let shown = grant.to_string();
            assert_eq!(shown.parse(), Ok(grant), "{shown}");
        }
    }

    #[test]
    fn other_forms_of_addresses_are_no_hosts() {
        for host in [
            "2130706433",
            "127.1",
            "127.0.1",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "127.0.0.01",
            "0x",
            "a.1",
            "1.0x2",
            "[::1%eth0]",
            "[127.0.0.1]",
            "::1",
            "",
            ".",
            "a..b",
            "a%2eb",
        ] {
            assert_eq!(Host::parse(host), None, "{host}");
            assert!(
                format!("http://{host}").parse::<OutboundUrl>().is_err(),
                "{host}"
            );
            assert_eq!(target(&format!("http://{host}/")), None, "{host}");
        }
        assert_eq!(target("http://user@a.example/"), None);
        assert_eq!(target("http://a.example:+80/"), None);
        assert_eq!(target("ftp://a.example/"), None);
        assert_eq!(target("/path"), None);
    }

    #[test]
    fn mistakes_in_grants_are_refused() {
        for url in [
            "",
            "a.example",
            "ftp://a.example",
            "https://",
            "https://a.example/",
            "https://a.example:0",
            "https://a.example:70000",
            "https://a.example:",
            "https://*.1.2.3.4",
            "https://a.*.example",
            "https://u@a.example",
            "*://a.example",
            "https://*.",
            "https://[::1",
            "https://a b",
        ] {
            let error = url.parse::<OutboundUrl>().expect_err(url).to_string();
            assert!(error.contains("SCHEME://HOST"), "{error}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_name_addresses() {
        let target = target("http://a.example:80/").expect("valid");
        let loopback = IpAddr::from([127, 0, 0, 1]);
        for (url, names) in [
            ("http://127.0.0.1", true),
            ("http://localhost", true),
            ("http://localhost:*", true),
            ("http://127.0.0.1:81", false),
            ("https://127.0.0.1:80", false),
            ("http://127.0.0.2", false),
            ("http://[::ffff:127.0.0.1]", false),
            ("http://*", false),
            ("http://*.example", false),
            ("http://a.example", false),
        ] {
            let grant: OutboundUrl = url.parse().expect(url);
            assert_eq!(grant.names(loopback, &target), names, "{url}");
        }
    }
}
