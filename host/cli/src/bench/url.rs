//! `http://HOST:PORT/PATH`: a server to measure.

use http::Uri;
use http::uri::Authority;
use std::fmt;
use std::str::FromStr;

const EXPECTED: &str =
    "write http://HOST:PORT, e.g. http://127.0.0.1:8080, or http://HOST:PORT/PATH";

/// A server, and the prefix of paths there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// HOST:PORT, with brackets around an IPv6 address.
    pub authority: String,
    /// Empty, or a path without a final '/'.
    path: String,
}

impl Url {
    /// The `path` below this URL; '/' is the URL itself.
    pub fn join(&self, path: &str) -> String {
        match path {
            "/" if !self.path.is_empty() => self.path.clone(),
            _ => format!("{}{path}", self.path),
        }
    }

    /// The path of an operation of OpenAI's API, which starts with '/v1'; the URL may end with that too.
    pub fn openai(&self, path: &str) -> String {
        let base = self.path.strip_suffix("/v1").unwrap_or(&self.path);
        format!("{base}{path}")
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("benches do not support TLS; write http://HOST:PORT".to_owned());
        }
        let uri = text.parse::<Uri>().ok();
        let uri = uri.filter(|uri| uri.scheme_str() == Some("http") && !text.contains(['?', '#']));
        let url = uri.and_then(|uri| {
            Some(Url {
                authority: uri.authority().and_then(with_port)?,
                path: uri.path().trim_end_matches('/').to_owned(),
            })
        });
        url.ok_or_else(|| EXPECTED.to_owned())
    }
}

/// The authority with its port, 80 by default.
fn with_port(authority: &Authority) -> Option<String> {
    let (host, whole) = (authority.host(), authority.as_str());
    if host.is_empty() || whole.contains('@') {
        return None;
    }
    let port = match authority.port_u16() {
        Some(port) => port,
        None if whole == host => 80,
        None => return None,
    };
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse() {
        for (text, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://localhost/", "http://localhost:80"),
            ("http://[::1]:1/v1/", "http://[::1]:1/v1"),
            ("http://a:1/b/c", "http://a:1/b/c"),
        ] {
            let url: Url = text.parse().expect(text);
            assert_eq!(url.to_string(), expected);
        }
        for text in [
            "",
            "a:1",
            "127.0.0.1:8080",
            "/v1",
            "http://",
            "ftp://a:1",
            "http://a:99999",
            "http://a:x",
            "http://a@b:1",
            "http://a:1/?b",
            "http://a:1/#b",
        ] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(error.contains("write http://HOST:PORT"), "{text}: {error}");
        }
        let error = "https://a:1".parse::<Url>().expect_err("TLS");
        assert!(error.contains("TLS"), "{error}");
    }

    #[test]
    fn paths_are_joined() {
        let url = |text: &str| text.parse::<Url>().expect(text);
        let completions = "/v1/completions";
        assert_eq!(url("http://a:1").openai(completions), completions);
        assert_eq!(url("http://a:1/v1/").openai(completions), completions);
        assert_eq!(url("http://a:1/b").openai(completions), "/b/v1/completions");
        assert_eq!(url("http://a:1").join("/"), "/");
        assert_eq!(url("http://a:1/b").join("/"), "/b");
        assert_eq!(url("http://a:1/b/").join("/c?d"), "/b/c?d");
    }
}
