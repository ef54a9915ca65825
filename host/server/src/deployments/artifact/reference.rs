//! `oci://HOST/REPOSITORY:TAG@sha256:DIGEST`: the address of an artifact.

use super::super::digest::Digest;
use super::error::ArtifactError;
use std::fmt;
use std::str::FromStr;

/// In front of each reference.
const SCHEME: &str = "oci://";
/// Longest name of a repository, as registries limit it.
const MAX_REPOSITORY: usize = 255;
/// Longest tag, as the distribution specification limits it.
const MAX_TAG: usize = 128;
/// Longest host with its port.
const MAX_HOST: usize = 261;

/// The address of an artifact: a registry, a repository, and a tag, a digest or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArtifactReference {
    /// `HOST` or `HOST:PORT` of the registry.
    pub host: String,
    /// Name of the repository, such as `team/chat`.
    pub repository: String,
    /// The tag. With a digest it only says where the digest came from.
    pub tag: Option<String>,
    /// The digest of the image manifest.
    pub digest: Option<Digest>,
}

impl ArtifactReference {
    /// Whether the text begins as a reference does.
    pub fn is_reference(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The same with this digest.
    #[must_use]
    pub fn pinned(&self, digest: Digest) -> Self {
        ArtifactReference {
            digest: Some(digest),
            ..self.clone()
        }
    }
}

impl FromStr for ArtifactReference {
    type Err = ArtifactError;

    fn from_str(text: &str) -> Result<Self, ArtifactError> {
        let invalid = || ArtifactError::Reference(text.chars().take(200).collect());
        let parse = || {
            let rest = text.strip_prefix(SCHEME)?;
            let (rest, digest) = match rest.split_once('@') {
                Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().ok()?)),
                None => (rest, None),
            };
            let (host, path) = rest.split_once('/')?;
            let (repository, tag) = match path.split_once(':') {
                Some((repository, tag)) => (repository, Some(tag)),
                None => (path, None),
            };
            let is_valid = is_host(host)
                && repository.len() <= MAX_REPOSITORY
                && repository.split('/').all(is_component)
                && tag.is_none_or(is_tag)
                && (tag.is_some() || digest.is_some());
            is_valid.then(|| ArtifactReference {
                host: host.to_owned(),
                repository: repository.to_owned(),
                tag: tag.map(str::to_owned),
                digest,
            })
        };
        parse().ok_or_else(invalid)
    }
}

impl fmt::Display for ArtifactReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

corral_runtime::serde_as_text!(ArtifactReference);

/// `HOST`, `HOST:PORT`, or the same with an IPv6 address in brackets.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_name = !host.is_empty()
        && !host.starts_with(['.', '-'])
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_address = address.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    text.len() <= MAX_HOST
        && (is_name || is_address)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A part of a repository's name: lower-case letters and digits, with separators within.
fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    ends.is_some_and(|(first, last)| is_word(*first) && is_word(*last))
        && bytes
            .iter()
            .all(|byte| is_word(*byte) || matches!(byte, b'.' | b'_' | b'-'))
        && !text.contains("..")
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|first| is_word(*first))
        && bytes.len() <= MAX_TAG
        && bytes
            .iter()
            .all(|byte| is_word(*byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
impl schemars::JsonSchema for ArtifactReference {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ArtifactReference".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "The address of an artifact: 'oci://HOST/REPOSITORY:TAG@sha256:DIGEST'.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_parse_and_print() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for text in [
            "oci://ghcr.io/team/chat:1.2",
            "oci://localhost:5000/a:latest",
            "oci://[::1]:5000/a/b-c/d_e:x",
            &format!("oci://r.example/a@{digest}"),
            &format!("oci://r.example/a:1@{digest}"),
        ] {
            let reference: ArtifactReference = text.parse().expect(text);
            assert_eq!(reference.to_string(), text);
            assert!(ArtifactReference::is_reference(text));
        }
        let pinned = "oci://a/b:1".parse::<ArtifactReference>().expect("good");
        let pinned = pinned.pinned(digest.parse().expect("a digest"));
        assert_eq!(pinned.to_string(), format!("oci://a/b:1@{digest}"));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "oci://",
            "ghcr.io/a:1",
            "oci://a:1",
            "oci://a/b",
            "oci://a/b:",
            "oci://a/B:1",
            "oci://a/../b:1",
            "oci://a//b:1",
            "oci://a/b:1/c",
            "oci://a/b:.1",
            "oci://user@a/b:1",
            "oci://a:b/c:1",
            "oci://a:0/c:1",
            "oci://a/b@sha256:0",
            "oci://a b/c:1",
            "oci://a/b?c:1",
        ] {
            let error = text.parse::<ArtifactReference>().expect_err(text);
            assert!(error.to_string().contains("oci://HOST/REPOSITORY:TAG"));
        }
    }
}
