//! Protects an admin listener on loopback from DNS rebinding.
//!
//! The listener trusts local clients. A web page can resolve its own name to 127.0.0.1 and let the browser
//! send requests there, but the browser then names the page's host. Requests for hosts that are not this
//! machine are therefore refused.

use crate::problem::Problem;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use std::net::IpAddr;

/// Checks that the request's host is `localhost`, a loopback address, or the listener's `own` name. A request
/// without a host is not from a browser.
pub(super) fn check(own: &str, target: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let named = headers.get_all(HOST).iter().map(|value| {
        let value = value.to_str().ok()?.parse::<Authority>().ok()?;
        Some(value.host().to_owned())
    });
    // HTTP/2 requests and absolute targets name the host in the target.
    let target = target.host().map(|host| Some(host.to_owned()));
    let mut hosts = named.chain(target);
    if hosts.all(|host| host.is_some_and(|host| is_ours(&host, own))) {
        return Ok(());
    }
    let own = match own.is_empty() || is_ours(own, "") {
        true => String::new(),
        false => format!(", {own}"),
    };
    Err(Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        "invalid-host",
        format!(
            "the request names a host that is not this admin listener, as a web page could; use \
             localhost, 127.0.0.1{own}, or name the host with 'corral serve --admin HOST:PORT'"
        ),
    ))
}

/// Whether `host` is this machine, also known as `own`.
fn is_ours(host: &str, own: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let address = bare.unwrap_or(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
        || (!own.is_empty() && host.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn checked(own: &str, target: &'static str, hosts: &[&'static str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        let checked = check(own, &Uri::from_static(target), &headers);
        checked.err().map(|problem| problem.status().as_u16())
    }

    #[test]
    fn own_names_are_accepted() {
        for host in [
            "localhost",
            "LocalHost:8081",
            "127.0.0.1:8081",
            "127.1.2.3",
            "[::1]:8081",
            "[::ffff:127.0.0.1]",
            "corral.internal:9000",
        ] {
            assert_eq!(checked("corral.internal", "/x", &[host]), None, "{host}");
        }
        assert_eq!(checked("127.0.0.1", "/x", &[]), None, "HTTP/1.0");
        assert_eq!(checked("127.0.0.1", "http://localhost:1/x", &[]), None);
    }

    #[test]
    fn other_names_are_refused() {
        for host in [
            "evil.example:8081",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:8081",
            "a b",
            "",
        ] {
            for own in ["127.0.0.1", "corral.internal", ""] {
                assert_eq!(checked(own, "/x", &[host]), Some(421), "{host}");
            }
        }
        assert_eq!(checked("a", "http://evil.example/x", &["a"]), Some(421));
        assert_eq!(checked("a", "/x", &["a", "evil.example"]), Some(421));
    }
}
