//! Refuses requests of web pages of another origin.
//!
//! A page in an operator's browser can send requests to an admin listener that its machine reaches, and without a token
//! they would be obeyed. Browsers say where a request comes from: in `Sec-Fetch-Site` where the connection is trusted,
//! as on loopback, and in `Origin` for anything but a plain `GET`. Other clients send neither.

use crate::problem::Problem;
use http::header::{HOST, HeaderName, ORIGIN};
use http::{HeaderMap, Request, StatusCode};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks that the request comes from a page of this listener, or from no page.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    let headers = request.headers();
    let sites = Vec::from_iter(headers.get_all(SEC_FETCH_SITE));
    let is_own = match sites[..] {
        [] => {
            let mut origins = headers.get_all(ORIGIN).iter();
            let target = request
                .uri()
                .authority()
                .map(|authority| authority.as_str());
            let host = target.or(host(headers));
            origins.all(|origin| is_origin_of(origin.as_bytes(), host))
        }
        // Typed by a person, or a bookmark.
        [site] => matches!(site.as_bytes(), b"same-origin" | b"none"),
        _ => false,
    };
    match is_own {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "cross-origin",
            "the request comes from a web page of another origin, which the admin listener does not serve; \
             open the console of this listener, or use a program that is no browser",
        )),
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// Whether an origin, `SCHEME://HOST[:PORT]`, is that of `host`.
fn is_origin_of(origin: &[u8], host: Option<&str>) -> bool {
    let origin = std::str::from_utf8(origin).unwrap_or_default();
    let origin = origin.split_once("://").map(|(_, authority)| authority);
    matches!((origin, host), (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::put("/models/tiny").header(HOST, "127.0.0.1:8081");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let checked = check(&request.body(()).expect("a request"));
        checked.err().map(|problem| problem.status().as_u16())
    }

    #[test]
    fn own_page_and_programs_are_served() {
        for headers in [
            &[][..],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("origin", "http://127.0.0.1:8081")],
            // A proxy may have changed the host; the browser knows better.
            &[
                ("sec-fetch-site", "same-origin"),
                ("origin", "https://corral.example"),
            ],
        ] {
            assert_eq!(checked(headers), None, "{headers:?}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        for headers in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "")],
            &[
                ("sec-fetch-site", "same-origin"),
                ("sec-fetch-site", "cross-site"),
            ],
            &[("origin", "https://evil.example")],
            &[("origin", "http://127.0.0.1:3000")],
            &[("origin", "http://127.0.0.1")],
            &[("origin", "null")],
            &[("origin", "")],
            &[
                ("origin", "http://127.0.0.1:8081"),
                ("origin", "https://evil.example"),
            ],
        ] {
            assert_eq!(checked(headers), Some(403), "{headers:?}");
        }
        let absolute = Request::post("http://localhost:8081/x")
            .header(ORIGIN, "http://localhost:8081")
            .body(());
        assert!(check(&absolute.expect("a request")).is_ok(), "HTTP/2");
    }
}
