//! Maps paths to deployments.
//!
//! A route is a path prefix. It matches whole segments only (`/chat` matches `/chat` and `/chat/x`, not
//! `/chatter`), and the longest one wins. Paths are not decoded: `/%63hat` does not match `/chat`.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Paths that the host itself answers on the public listener.
const RESERVED: [&str; 2] = ["/healthz", "/readyz"];

/// A path prefix such as `/chat` or `/v1/models`; `/` matches every path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route(Arc<str>);

impl Route {
    /// The route as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches `path`.
    pub(crate) fn matches(&self, path: &str) -> bool {
        is_below(path, self.0.trim_end_matches('/'))
    }
}

/// Whether `path` is `parent` or below it.
pub(crate) fn is_below(path: &str, parent: &str) -> bool {
    let below = path.strip_prefix(parent);
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

corral_runtime::serde_as_text!(Route);

/// Why a text is not a route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// It does not start with a slash.
    #[error("the route '{0}' does not start with '/'; write '/{0}'")]
    NoSlash(String),
    /// It ends with a slash.
    #[error("the route '{0}' ends with '/'; write '{1}', which matches all paths below it")]
    TrailingSlash(String, String),
    /// A segment is empty, `.` or `..`, which clients do not send.
    #[error("the route '{0}' has a segment '{1}' that clients do not send; remove it")]
    Segment(String, String),
    /// It contains a character that is not allowed in a path.
    #[error("the route '{0}' contains {1:?}; use letters, digits and '-', '_', '.', '~', '/'")]
    Character(String, char),
    /// The host answers this path itself.
    #[error("the route '{0}' is reserved for the host; choose another")]
    Reserved(String),
}

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "/" {
            return Ok(Route(text.into()));
        }
        let Some(inner) = text.strip_prefix('/') else {
            return Err(RouteError::NoSlash(text.to_owned()));
        };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.~/@:+,;=$!'()*".contains(c);
        if let Some(other) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(RouteError::Character(text.to_owned(), other));
        }
        if let Some(shorter) = text.strip_suffix('/').filter(|s| !s.ends_with('/')) {
            return Err(RouteError::TrailingSlash(
                text.to_owned(),
                shorter.to_owned(),
            ));
        }
        if let Some(odd) = inner.split('/').find(|s| matches!(*s, "" | "." | "..")) {
            return Err(RouteError::Segment(text.to_owned(), odd.to_owned()));
        }
        if RESERVED.into_iter().any(|host| is_below(text, host)) {
            return Err(RouteError::Reserved(text.to_owned()));
        }
        Ok(Route(text.into()))
    }
}

/// Two deployments have the same route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two plugins have the route '{0}'; give each its own")]
pub struct RouteTaken(pub Route);

/// Routes with their targets.
#[derive(Clone, Debug)]
pub struct RouteTable<T> {
    /// By route without a trailing slash, so `/` is the empty string.
    targets: HashMap<String, T>,
    /// Length of the longest key.
    max_length: usize,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        RouteTable {
            targets: HashMap::new(),
            max_length: 0,
        }
    }
}

impl<T> RouteTable<T> {
    /// Adds a route.
    ///
    /// # Errors
    /// If the route exists; it keeps its target.
    pub fn add(&mut self, route: Route, target: T) -> Result<(), RouteTaken> {
        let key = route.as_str().trim_end_matches('/');
        if self.targets.contains_key(key) {
            return Err(RouteTaken(route));
        }
        self.max_length = self.max_length.max(key.len());
        self.targets.insert(key.to_owned(), target);
        Ok(())
    }

    /// The target of the longest route that matches whole segments of `path`.
    pub fn find(&self, path: &str) -> Option<&T> {
        let mut candidate = path;
        loop {
            // Hashing candidates longer than every key would make a path of many slashes cost its square.
            if candidate.len() <= self.max_length
                && let Some(target) = self.targets.get(candidate)
            {
                return Some(target);
            }
            candidate = &candidate[..candidate.rfind('/')?];
        }
    }

    /// The target of exactly this route.
    pub fn get(&self, route: &Route) -> Option<&T> {
        self.targets.get(route.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(prefixes: &[&'static str]) -> RouteTable<&'static str> {
        let mut routes = RouteTable::default();
        for prefix in prefixes {
            routes
                .add(prefix.parse().expect("a valid route"), *prefix)
                .expect("a free route");
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
    fn root_matches_all_other_paths() {
        let routes = routes(&["/", "/chat"]);
        assert_eq!(routes.find("/"), Some(&"/"));
        assert_eq!(routes.find("/other/x"), Some(&"/"));
        assert_eq!(routes.find("/chat/x"), Some(&"/chat"));
        assert_eq!(routes.find("*"), None, "'*' is not a path");
    }

    #[test]
    fn route_is_given_once() {
        let mut routes = routes(&["/chat"]);
        let chat: Route = "/chat".parse().expect("a valid route");
        assert_eq!(routes.add(chat.clone(), "other"), Err(RouteTaken(chat)));
        assert_eq!(routes.find("/chat"), Some(&"/chat"));
    }

    #[test]
    fn invalid_routes_say_what_to_write() {
        for (text, expected) in [
            ("chat", "write '/chat'"),
            ("", "does not start with '/'"),
            ("/chat/", "write '/chat', which matches all paths below"),
            ("/a//b", "segment ''"),
            ("//", "segment ''"),
            ("/a/../b", "segment '..'"),
            ("/a b", "contains ' '"),
            ("/a?b", "contains '?'"),
            ("/%41", "contains '%'"),
            ("/é", "contains 'é'"),
            ("/healthz", "reserved for the host"),
            ("/readyz/x", "reserved for the host"),
        ] {
            let error = text.parse::<Route>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!("/healthz2".parse::<Route>().is_ok());
    }

    #[test]
    fn path_of_many_slashes_is_cheap() {
        let routes = routes(&["/chat"]);
        let path = "/".repeat(1 << 20);
        let started = std::time::Instant::now();
        assert_eq!(routes.find(&path), None);
        // Looking up each prefix would take minutes.
        assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    }
}
