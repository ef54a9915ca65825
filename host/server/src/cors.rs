//! Cross-origin resource sharing: which web pages may read a deployment's responses.
//!
//! Off by default. Where it is on, the host owns every `Access-Control-*` header of the route: it answers preflight
//! requests without a call of the plugin and without an API key, which browsers do not send with them, and it adds the
//! headers to every response, its own errors included, because a browser hides a response without them. Credentials that
//! a browser adds by itself, such as cookies, are never allowed; an API key in `Authorization` is none of them.
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Prefix of the names of all CORS response headers.
const PREFIX: &str = "access-control-";
/// Longest origin.
const MAX_ORIGIN_BYTES: usize = 256;
/// Seconds that a browser may keep the answer to a preflight request, and so how long a removed origin may still ask.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Response headers that scripts may read, beyond those that CORS always lets them read.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("x-request-id, retry-after, x-corral-ignored");
/// Any origin.
const ANY: &str = "*";

/// The origin of a web page as browsers write it, `SCHEME://HOST[:PORT]`, or `*` for any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// The text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an origin; write SCHEME://HOST or SCHEME://HOST:PORT, e.g. https://app.example, or *"
)]
pub struct CorsError(String);

impl FromStr for Origin {
    type Err = CorsError;

    fn from_str(text: &str) -> Result<Self, CorsError> {
        let error = || CorsError(text.chars().take(MAX_ORIGIN_BYTES).collect());
        let parse = || {
            if text == ANY {
                return Some(Origin(HeaderValue::from_static(ANY)));
            }
            let (scheme, host) = text.split_once("://")?;
            let word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
            let valid = text.len() <= MAX_ORIGIN_BYTES
                && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(word)
                && !host.is_empty()
                && !host.starts_with(':')
                && host.chars().all(|c| word(c) || "_[]:".contains(c));
            if !valid {
                return None;
            }
            // Browsers write lower case, and no default port.
            let lower = text.to_ascii_lowercase();
            let port = match &*scheme.to_ascii_lowercase() {
                "http" => ":80",
                "https" => ":443",
                _ => "",
            };
            let bare = lower.strip_suffix(port).unwrap_or(&lower);
            HeaderValue::from_str(bare).ok().map(Origin)
        };
        parse().ok_or_else(error)
    }
}

corral_runtime::serde_as_text!(Origin);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It was parsed from text.
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// The origins whose pages may read the responses of a route. If there are none, the host adds no header, and the
/// plugin gets preflight requests like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cors(Vec<Origin>);

impl Cors {
    /// Most origins of a route.
    pub const MAX_ORIGINS: usize = 32;

    /// Allows these origins.
    pub fn new(origins: Vec<Origin>) -> Self {
        Cors(origins)
    }

    /// Whether no origin is allowed.
    pub fn is_off(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of origins.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    fn is_any(&self) -> bool {
        self.0.iter().any(|origin| origin.0 == ANY)
    }

    /// The value of `Access-Control-Allow-Origin` for a page of this origin.
    fn allowed(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        if self.is_any() {
            return Some(HeaderValue::from_static(ANY));
        }
        let origin = origin?;
        let allowed = self.0.iter().find(|allowed| allowed.0 == *origin);
        allowed.map(|allowed| allowed.0.clone())
    }

    /// The response to a preflight request; `None` if the request is none, or CORS is off.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response<()>> {
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        if self.is_off() || method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
            return None;
        }
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::NO_CONTENT;
        if self.allowed(headers.get(ORIGIN)).is_some() {
            let answer = response.headers_mut();
            // The plugin decides about methods and headers when the request itself comes.
            answer.insert(ACCESS_CONTROL_ALLOW_METHODS, asked.clone());
            if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
            }
            answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
        let vary = "Access-Control-Request-Method, Access-Control-Request-Headers";
        let vary = HeaderValue::from_static(vary);
        response.headers_mut().append(VARY, vary);
        Some(response)
    }

    /// Removes the CORS headers that a plugin set from its response.
    pub(crate) fn remove_plugin_headers(&self, headers: &mut HeaderMap) {
        if self.is_off() {
            return;
        }
        let is_cors = |name: &&HeaderName| name.as_str().starts_with(PREFIX);
        let names: Vec<_> = headers.keys().filter(is_cors).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }

    /// Adds the headers to a response for a page of `origin`.
    pub(crate) fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.is_off() {
            return;
        }
        // Caches must not hand one page's response to another.
        if !self.is_any() {
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(allowed) = self.allowed(origin) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        Cors(origins.iter().map(|one| one.parse().expect(one)).collect())
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn origins_parse_as_browsers_write_them() {
        for (text, expected) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://localhost:80", "http://localhost"),
            ("http://localhost:8080", "http://localhost:8080"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("tauri://localhost", "tauri://localhost"),
            ("*", "*"),
        ] {
            let origin: Origin = text.parse().expect(text);
            assert_eq!(origin.to_string(), expected);
        }
        for text in [
            "",
            "app.example",
            "https://",
            "https://app.example/",
            "https://a@b",
            "https://*.example",
            "null",
            "://a",
            "https://a b",
            "https://:8080",
        ] {
            let error = text.parse::<Origin>().expect_err(text).to_string();
            assert!(error.contains("write SCHEME://HOST"), "{error}");
        }
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        let cors = cors(&["https://a.example", "https://b.example"]);
        let with = |origin: &'static str| {
            let mut headers = headers(&[
                ("vary", "accept"),
                ("access-control-allow-origin", "*"),
                ("access-control-allow-credentials", "true"),
                ("access-control-allow-methods", "PUT"),
            ]);
            cors.remove_plugin_headers(&mut headers);
            cors.apply(Some(&HeaderValue::from_static(origin)), &mut headers);
            headers
        };
        let allowed = with("https://b.example");
        assert_eq!(allowed["access-control-allow-origin"], "https://b.example");
        assert!(allowed.contains_key("access-control-expose-headers"));
        for origin in ["https://c.example", "https://b.example.c", "null", "*"] {
            let refused = with(origin);
            assert!(!refused.contains_key("access-control-allow-origin"));
            let vary: Vec<_> = refused.get_all(VARY).iter().collect();
            assert_eq!(vary, ["accept", "Origin"], "{origin}");
        }
        for headers in [allowed, with("null")] {
            assert!(!headers.contains_key("access-control-allow-credentials"));
            assert!(!headers.contains_key("access-control-allow-methods"));
        }
    }

    #[test]
    fn any_origin_gets_a_star() {
        let mut headers = HeaderMap::new();
        cors(&["https://a.example", "*"]).apply(None, &mut headers);
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert!(!headers.contains_key(VARY));
    }

    #[test]
    fn preflight_echoes_what_is_asked() {
        let asked = headers(&[
            ("origin", "https://a.example"),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type",
            ),
        ]);
        let one = cors(&["https://a.example"]);
        let preflight = |cors: &Cors, method| cors.preflight(&method, &asked);
        let answer = preflight(&one, Method::OPTIONS).expect("a preflight request");
        assert_eq!(answer.status(), 204);
        let answer = answer.headers();
        assert_eq!(answer["access-control-allow-methods"], "POST");
        let allowed = &answer["access-control-allow-headers"];
        assert_eq!(allowed, "authorization,content-type");
        assert_eq!(answer["access-control-max-age"], "600");
        let other = preflight(&cors(&["https://b.example"]), Method::OPTIONS);
        let other = other.expect("a preflight request");
        assert!(!other.headers().contains_key("access-control-allow-methods"));
        assert!(preflight(&one, Method::POST).is_none());
        assert!(preflight(&Cors::default(), Method::OPTIONS).is_none());
        let plain = headers(&[("origin", "https://a.example")]);
        assert!(one.preflight(&Method::OPTIONS, &plain).is_none());
    }
}
