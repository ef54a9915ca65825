//! The client of a hub: lists a repository's files and opens them, with bounded waits.
//!
//! It follows redirects itself, since it sends the token to the hub's own origin only, and since the hub's answer to a
//! file, not that of the storage it redirects to, has the checksum. Requests to this machine use no proxy, which would
//! carry the token in clear text.

mod error;

use super::reference::{HubReference, is_safe_path};
use crate::Error;
use crate::http_client::{MAX_REDIRECTS, Origin, RequestError, agent, resolve};
use corral_client_tls::certificates;
use error::{failure, refusal};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, LOCATION, RANGE,
};
use http::response::Parts;
use http::{StatusCode, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::{Agent, Body};

/// The hub without `HF_ENDPOINT`.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Largest list of files.
const MAX_LIST_BYTES: u64 = 32 << 20;
/// Most files of a repository.
const MAX_FILES: usize = 100_000;
/// Characters of a path that are sent as they are.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A hub.
pub struct Hub {
    agent: Agent,
    /// Without a slash at its end.
    endpoint: String,
    origin: Origin,
    /// Value of `Authorization`.
    authorization: Option<HeaderValue>,
}

/// A repository at one commit.
pub struct Repository {
    /// `ORG/REPO`.
    pub repo: String,
    /// The commit, or the branch if the hub states none.
    pub revision: String,
    pub files: Vec<RepositoryFile>,
}

/// A file of a repository.
pub struct RepositoryFile {
    pub name: String,
    pub bytes: Option<u64>,
    pub sha256: Option<String>,
}

/// The response to a request for a file.
pub struct FileResponse {
    /// The hub's ETag, which for large files is their SHA-256.
    pub etag: Option<String>,
    /// Offset of the body's first byte; nothing if the server does not have the requested bytes.
    pub offset: Option<u64>,
    pub body: Body,
}

impl Hub {
    /// The hub that `HF_ENDPOINT` names, with the token in `HF_TOKEN`.
    pub fn from_env() -> Result<Self, Error> {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let origin = endpoint.parse().ok().and_then(|uri| Origin::of(&uri));
        let origin = origin.ok_or_else(|| {
            Error::failed(format!(
                "HF_ENDPOINT is '{endpoint}'; write http://HOST or https://HOST, e.g. {DEFAULT_ENDPOINT}"
            ))
        })?;
        let token = variable("HF_TOKEN");
        if token.is_some() && !origin.is_private() {
            return Err(Error::failed(format!(
                "HF_TOKEN is not sent to {endpoint} without encryption; use https, or unset HF_TOKEN"
            )));
        }
        let authorization = token.as_deref().map(bearer).transpose()?;
        let certificates = match certificates(None) {
            Ok(certificates) => certificates,
            Err(_) if origin.scheme == "http" => Vec::new(),
            Err(error) => {
                let message = format!("cannot verify {endpoint}: {error}");
                return Err(Error::context(message)(error));
            }
        };
        let agent = agent(&certificates);
        Ok(Self {
            agent,
            endpoint,
            origin,
            authorization,
        })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Lists a repository's files.
    pub fn repository(&self, reference: &HubReference) -> Result<Repository, RequestError> {
        let repo = &reference.repo;
        let url = format!("{}/api/models/{repo}?blobs=true", self.endpoint);
        let (response, _) = self.get(&url, None)?;
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(self.refused(repo, None, &head));
        }
        let body = body.with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let body = body.map_err(|error| failure(&error))?;
        let list = serde_json::from_slice::<Value>(&body).ok();
        let files = list.as_ref().and_then(|list| list["siblings"].as_array());
        let (Some(list), Some(files)) = (&list, files) else {
            return Err(RequestError::Final(Error::failed(format!(
                "{url} is no list of files as a hub has it; check HF_ENDPOINT"
            ))));
        };
        if files.len() > MAX_FILES {
            return Err(RequestError::Final(Error::failed(format!(
                "{url} lists {} files, more than {MAX_FILES}; check HF_ENDPOINT",
                files.len()
            ))));
        }
        Ok(Repository {
            repo: repo.clone(),
            revision: list["sha"].as_str().unwrap_or("main").to_owned(),
            files: files.iter().filter_map(listed_file).collect(),
        })
    }

    /// Requests a file from `offset` on. The server may begin elsewhere.
    pub fn open(
        &self,
        repository: &Repository,
        file: &str,
        offset: u64,
    ) -> Result<FileResponse, RequestError> {
        let Repository { repo, revision, .. } = repository;
        let path = utf8_percent_encode(file, PATH);
        let revision = utf8_percent_encode(revision, PATH);
        let url = format!("{}/{repo}/resolve/{revision}/{path}", self.endpoint);
        let range = (offset > 0).then(|| format!("bytes={offset}-"));
        let (response, etag) = self.get(&url, range.as_deref())?;
        let (head, body) = response.into_parts();
        let offset = match head.status {
            StatusCode::OK => Some(0),
            StatusCode::PARTIAL_CONTENT => content_start(&head.headers),
            StatusCode::RANGE_NOT_SATISFIABLE => None,
            _ => return Err(self.refused(repo, Some(file), &head)),
        };
        Ok(FileResponse { etag, offset, body })
    }

    /// Sends a request and follows redirects. Returns the last response, and the hub's ETag.
    fn get(
        &self,
        url: &str,
        range: Option<&str>,
    ) -> Result<(http::Response<Body>, Option<String>), RequestError> {
        let invalid = |url: &str| {
            let message = format!(
                "{} answered with the address '{url}', which is not valid; check HF_ENDPOINT",
                self.endpoint
            );
            RequestError::Final(Error::failed(message))
        };
        let mut uri: Uri = url.parse().map_err(|_| invalid(url))?;
        let mut etag = None;
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&uri).ok_or_else(|| invalid(&uri.to_string()))?;
            let is_hub = origin == self.origin;
            if !is_hub && self.origin.scheme == "https" && origin.scheme != "https" {
                return Err(invalid(&uri.to_string()));
            }
            let mut request = self.agent.get(&uri);
            if origin.is_loopback() {
                request = request.config().proxy(None).build();
            }
            // Lengths must be those of the file, not of a compressed form.
            request = request.header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = self.authorization.as_ref().filter(|_| is_hub) {
                request = request.header(AUTHORIZATION, authorization);
            }
            if let Some(range) = range {
                request = request.header(RANGE, range);
            }
            let response = request.call().map_err(|error| failure(&error))?;
            if is_hub {
                etag = etag_of(response.headers()).or(etag);
            }
            if !response.status().is_redirection() {
                return Ok((response, etag));
            }
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let location = location.unwrap_or_default();
            uri = resolve(&uri, location).ok_or_else(|| invalid(location))?;
        }
        Err(RequestError::Final(Error::failed(format!(
            "{url} leads to more than {MAX_REDIRECTS} redirects; check HF_ENDPOINT"
        ))))
    }

    fn refused(&self, repo: &str, file: Option<&str>, head: &Parts) -> RequestError {
        let has_token = self.authorization.is_some();
        refusal(&self.endpoint, has_token, repo, file, head)
    }
}

/// A file of a repository's list; `None` if its name could lead outside the repository's directory.
fn listed_file(file: &Value) -> Option<RepositoryFile> {
    let name = file["rfilename"].as_str()?;
    is_safe_path(name).then(|| RepositoryFile {
        name: name.to_owned(),
        bytes: file["lfs"]["size"].as_u64().or(file["size"].as_u64()),
        sha256: file["lfs"]["sha256"].as_str().and_then(sha256_of),
    })
}

/// The ETag of a file, of which the hub's own answer is only a redirect.
fn etag_of(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get("x-linked-etag").or_else(|| headers.get(ETAG));
    let etag = etag?.to_str().ok()?;
    let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    Some(etag.to_owned()).filter(|etag| etag.contains(|c: char| c.is_ascii_alphanumeric()))
}

/// The text, if it is a SHA-256 in hexadecimal digits.
pub fn sha256_of(text: &str) -> Option<String> {
    let is_sha256 = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_sha256.then(|| text.to_lowercase())
}

/// The first byte of `Content-Range`.
fn content_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (start, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    start.parse().ok()
}

/// The value of `Authorization` with a token.
fn bearer(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(Error::context(
        "HF_TOKEN contains a line break or another character that no token has; set it to the token alone",
    ))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_must_fit_a_header() {
        assert_eq!(bearer("hf_aB1").expect("a token"), "Bearer hf_aB1");
        for bad in ["hf_a\n", "hf_a\r\nx: y", "hf_a\0"] {
            let error = bearer(bad).expect_err(bad).message(false);
            assert!(error.contains("HF_TOKEN contains"), "{error}");
            assert!(!error.contains("hf_"), "{error}");
        }
    }

    #[test]
    fn unsafe_names_are_not_listed() {
        let name = |name: &str| {
            let file = serde_json::json!({"rfilename": name, "size": 1});
            listed_file(&file).map(|file| file.name)
        };
        for safe in ["x.gguf", "a/b/x.gguf", "a..b/x..gguf"] {
            assert_eq!(name(safe).as_deref(), Some(safe));
        }
        for bad in [
            "",
            "/x.gguf",
            "//x.gguf",
            "../x.gguf",
            "a/../../x.gguf",
            "a/..",
            "./x.gguf",
            "a//x.gguf",
            "a/",
            ".x.gguf",
            "a\\..\\x.gguf",
            "a\0.gguf",
            "a\n.gguf",
        ] {
            assert_eq!(name(bad), None, "{bad:?}");
        }
    }
}
