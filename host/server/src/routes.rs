//! Which deployment answers a path.
//!
//! A route is a path prefix. It matches whole segments only (`/chat` takes `/chat` and `/chat/x`,
//! not `/chatter`), and the longest one wins. Paths are compared as they were sent: `/%63hat` is
//! not `/chat`.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Paths that the host itself answers on the public listener.
const RESERVED: [&str; 2] = ["/healthz", "/readyz"];

/// A path prefix such as `/chat` or `/v1/models`; `/` takes every path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(String);

impl Prefix {
    /// The prefix as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

/// Why a text is no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// It does not begin with a slash.
    #[error("the route '{0}' does not begin with '/'; write '/{0}'")]
    NoSlash(String),
    /// It ends with a slash.
    #[error(
        "the route '{0}' ends with '/'; leave the last '/' away, '{1}' takes all paths below it"
    )]
    TrailingSlash(String, String),
    /// A segment is empty, `.` or `..`, which no client sends as it stands.
    #[error("the route '{0}' has a segment '{1}' that no client sends; leave it out")]
    Segment(String, String),
    /// It holds a character that does not stand in a path as it is.
    #[error("the route '{0}' holds {1:?}; use letters, digits and '-', '_', '.', '~', '/'")]
    Character(String, char),
    /// The host answers there itself.
    #[error("the route '{0}' belongs to the host; choose another")]
    Reserved(String),
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "/" {
            return Ok(Prefix(text.to_owned()));
        }
        let Some(inner) = text.strip_prefix('/') else {
            return Err(PrefixError::NoSlash(text.to_owned()));
        };
        let stands_for_itself =
            |c: char| c.is_ascii_alphanumeric() || "-_.~/@:+,;=$!'()*".contains(c);
        if let Some(other) = text.chars().find(|c| !stands_for_itself(*c)) {
            return Err(PrefixError::Character(text.to_owned(), other));
        }
        if let Some(shorter) = text.strip_suffix('/').filter(|s| !s.ends_with('/')) {
            return Err(PrefixError::TrailingSlash(
                text.to_owned(),
                shorter.to_owned(),
            ));
        }
        if let Some(odd) = inner.split('/').find(|s| matches!(*s, "" | "." | "..")) {
            return Err(PrefixError::Segment(text.to_owned(), odd.to_owned()));
        }
        let below = |host: &str| {
            text.strip_prefix(host)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if RESERVED.into_iter().any(below) {
            return Err(PrefixError::Reserved(text.to_owned()));
        }
        Ok(Prefix(text.to_owned()))
    }
}

/// Two deployments were given one route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two plugins are given the route '{0}'; give each its own")]
pub struct RouteTaken(pub Prefix);

/// Path prefixes, each with what answers below it.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    /// By prefix without a slash at the end, so `/` is the empty text.
    by_prefix: HashMap<String, T>,
    /// Length of the longest key.
    longest: usize,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Routes {
            by_prefix: HashMap::new(),
            longest: 0,
        }
    }
}

impl<T> Routes<T> {
    /// Adds a route; one that is already there is refused and stays as it was.
    pub fn add(&mut self, prefix: Prefix, target: T) -> Result<(), RouteTaken> {
        let key = prefix.as_str().trim_end_matches('/');
        if self.by_prefix.contains_key(key) {
            return Err(RouteTaken(prefix));
        }
        self.longest = self.longest.max(key.len());
        self.by_prefix.insert(key.to_owned(), target);
        Ok(())
    }

    /// What answers `path`: the target of the longest prefix that matches whole segments of it.
    pub fn find(&self, path: &str) -> Option<&T> {
        let mut candidate = path;
        loop {
            // Longer than every key: don't hash it, or a path of many slashes costs its square.
            if candidate.len() <= self.longest
                && let Some(target) = self.by_prefix.get(candidate)
            {
                return Some(target);
            }
            candidate = &candidate[..candidate.rfind('/')?];
        }
    }

    /// The target of exactly this route.
    pub fn get(&self, prefix: &Prefix) -> Option<&T> {
        self.by_prefix.get(prefix.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(prefixes: &[&'static str]) -> Routes<&'static str> {
        let mut routes = Routes::default();
        for prefix in prefixes {
            routes
                .add(prefix.parse().expect("a good prefix"), *prefix)
                .expect("a free prefix");
        }
        routes
    }

    #[test]
    fn longest_prefix_of_whole_segments_wins() {
        let routes = routes(&["/chat", "/chat/fast", "/v1/models"]);
        for (path, expected) in [
            ("/chat", Some("/chat")),
            ("/chat/", Some("/chat")),
            ("/chat/x/y", Some("/chat")),
            ("/chat/fast", Some("/chat/fast")),
            ("/chat/fast/x", Some("/chat/fast")),
            ("/chat/faster", Some("/chat")),
            ("/chatter", None),
            ("/v1", None),
            ("/v1/models/tiny", Some("/v1/models")),
            ("/", None),
            ("*", None),
            ("", None),
            ("//chat", None),
        ] {
            assert_eq!(routes.find(path).copied(), expected, "{path}");
        }
    }

    #[test]
    fn the_root_takes_what_is_left() {
        let routes = routes(&["/", "/chat"]);
        assert_eq!(routes.find("/"), Some(&"/"));
        assert_eq!(routes.find("/other/x"), Some(&"/"));
        assert_eq!(routes.find("/chat/x"), Some(&"/chat"));
        assert_eq!(routes.find("*"), None, "'*' is no path");
    }

    #[test]
    fn a_route_is_given_once() {
        let mut routes = routes(&["/chat"]);
        let chat: Prefix = "/chat".parse().expect("a good prefix");
        assert_eq!(routes.add(chat.clone(), "other"), Err(RouteTaken(chat)));
        assert_eq!(routes.find("/chat"), Some(&"/chat"));
    }

    #[test]
    fn bad_routes_say_what_to_write() {
        for (text, expected) in [
            ("chat", "write '/chat'"),
            ("", "does not begin with '/'"),
            ("/chat/", "'/chat' takes all paths below it"),
            ("/a//b", "segment ''"),
            ("//", "segment ''"),
            ("/a/../b", "segment '..'"),
            ("/a b", "holds ' '"),
            ("/a?b", "holds '?'"),
            ("/%41", "holds '%'"),
            ("/é", "holds 'é'"),
            ("/healthz", "belongs to the host"),
            ("/readyz/x", "belongs to the host"),
        ] {
            let error = text.parse::<Prefix>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!("/healthz2".parse::<Prefix>().is_ok());
    }

    #[test]
    fn a_path_of_many_slashes_is_cheap() {
        let routes = routes(&["/chat"]);
        let path = "/".repeat(1 << 20);
        let started = std::time::Instant::now();
        assert_eq!(routes.find(&path), None);
        assert!(
            started.elapsed().as_millis() < 500,
            "{:?}",
            started.elapsed()
        );
    }
}
