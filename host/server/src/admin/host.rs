//! By which names a listener that only this machine can reach is asked.
//!
//! It trusts who reaches it, as far as numbers go and, where there is no token, further. But a page of the
//! web can give its own name the address 127.0.0.1 (DNS rebinding), and read there what the browser takes
//! for its own. The browser says that name as the host; so names that are not this machine's are refused.

use crate::problem::Problem;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use std::net::IpAddr;

/// Checks the host that a request is for: `localhost`, a loopback address, or the listener's `own` name. Who
/// names none is no browser.
pub(super) fn check(own: &str, target: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let named = headers.get_all(HOST).iter().map(|value| {
        let value = value.to_str().ok()?.parse::<Authority>().ok()?;
        Some(value.host().to_owned())
    });
    // Of HTTP/2, and of targets that name their host themselves.
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
        "wrong-host",
        format!(
            "the admin listener is asked by a name that is not its own, as web pages could do; ask it as \
             localhost, 127.0.0.1{own}, or name the host with 'corral serve --admin HOST:PORT'"
        ),
    ))
}

/// Whether a host is this machine, which is also called `own`.
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
    fn this_machine_is_asked_by_its_own_names() {
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
