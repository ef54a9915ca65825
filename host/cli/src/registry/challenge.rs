//! Parses `WWW-Authenticate`, the challenge of a registry that requires a login. See RFC 9110, section 11.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A user and a password in each request.
    Basic,
    /// A token of the server at `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The challenge of a response; a token is preferred.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let challenges = values.filter_map(|value| Self::parse(value.to_str().ok()?));
        let mut challenges = Vec::from_iter(challenges);
        challenges.sort_by_key(|challenge| *challenge == Challenge::Basic);
        challenges.into_iter().next()
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest.trim_start();
        while let Some((name, value)) = rest.split_once('=') {
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => value.split_at(value.find(',').unwrap_or(value.len())),
            };
            let field = match name.trim().to_ascii_lowercase().as_str() {
                "realm" => &mut realm,
                "service" => &mut service,
                "scope" => &mut scope,
                _ => &mut None,
            };
            *field = Some(value.to_owned());
            rest = after.trim_start_matches([',', ' ']);
        }
        Some(Challenge::Bearer {
            realm: realm?,
            service,
            scope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().expect("a value"));
        }
        Challenge::of(&headers)
    }

    #[test]
    fn challenges_parse() {
        let token = r#"Bearer realm="https://a.example/token?x=1",service="a, b",scope="repository:c:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://a.example/token?x=1".to_owned(),
            service: Some("a, b".to_owned()),
            scope: Some("repository:c:pull,push".to_owned()),
        };
        let basic = r#"Basic realm="a""#;
        assert_eq!(of(&[basic, token]), Some(expected));
        assert_eq!(of(&[basic]), Some(Challenge::Basic));
        assert_eq!(of(&["basic"]), Some(Challenge::Basic));
        let bare = Challenge::Bearer {
            realm: "r".to_owned(),
            service: None,
            scope: None,
        };
        assert_eq!(of(&["bearer error=x , Realm=r"]), Some(bare));
        for other in [
            "",
            "Bearer",
            "Bearer realm=\"r",
            "Negotiate x",
            "Bearer x=1",
        ] {
            assert_eq!(of(&[other]), None, "{other}");
        }
    }
}
