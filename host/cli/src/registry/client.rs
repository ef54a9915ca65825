//! The client of a registry's repository: gets and puts image manifests and blobs, as the OCI distribution specification
//! 1.1 says.
//!
//! It answers the registry's challenge with the login. Logins and tokens go to the registry's own origin and its token server
//! only. The client checks digest and length of every blob, and repeats requests that failed for a passing reason.

mod error;

use super::args::RegistryArgs;
use super::challenge::Challenge;
use super::credentials::Credentials;
use crate::Error;
use crate::http_client::{
    MAX_REDIRECTS, Origin, RequestError, Transient, agent, resolve, retried, wait_after,
};
use crate::progress::Progress;
use crate::terminal::note;
use bytes::Bytes;
use corral_client_tls::certificates;
use corral_server::deployments::Digest;
use corral_server::deployments::artifact::{
    ArtifactReference, Descriptor, IMAGE_INDEX_TYPES, IMAGE_MANIFEST_TYPE, IMAGE_MANIFEST_TYPES,
    MAX_IMAGE_MANIFEST_BYTES,
};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, LOCATION,
};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::cell::RefCell;
use std::io::Read;
use std::time::Duration;
use ureq::{Agent, AsSendBody, Body, SendBody};

/// Longest request with its response: a component of 64 MiB takes that at 1 Mbit/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Largest response of a token server.
const MAX_TOKEN_BYTES: u64 = 1 << 20;
/// The API of docker's own registry.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// What a client does in the repository.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Pull,
    Push,
}

/// A repository of a registry.
pub(super) struct RepositoryClient {
    agent: Agent,
    /// As the reference names it.
    host: String,
    /// `SCHEME://HOST` of the API.
    endpoint: String,
    origin: Origin,
    repository: String,
    access: Access,
    credentials: Credentials,
    /// `Authorization` that the registry has accepted, or is about to.
    authorization: RefCell<Option<HeaderValue>>,
}

/// A request.
struct Call<'a> {
    method: Method,
    url: String,
    accept: &'a str,
    content_type: &'a str,
    body: Option<(&'a [u8], Option<&'a Progress>)>,
}

impl<'a> Call<'a> {
    fn new(method: Method, url: String) -> Self {
        Call {
            method,
            url,
            accept: "*/*",
            content_type: "application/octet-stream",
            body: None,
        }
    }

    fn with_body(self, body: &'a [u8], progress: Option<&'a Progress>) -> Self {
        Call {
            body: Some((body, progress)),
            ..self
        }
    }
}

impl RepositoryClient {
    /// A client of the repository that the reference names.
    pub(super) fn new(
        reference: &ArtifactReference,
        args: &RegistryArgs,
        access: Access,
    ) -> Result<Self, Error> {
        let host = &reference.host;
        let api = match DOCKER_HUB {
            (known, api) if known == host => api,
            _ => host,
        };
        let origin = |scheme| {
            let uri = format!("{scheme}://{api}").parse::<Uri>().ok();
            uri.and_then(|uri| Origin::of(&uri))
        };
        let invalid = || Error::usage(format!("'{host}' is not the host of a registry"));
        let secure = origin("https").ok_or_else(invalid)?;
        let scheme =
            match args.registry_http || (secure.is_loopback() && args.registry_ca.is_none()) {
                true => "http",
                false => "https",
            };
        let origin = origin(scheme).ok_or_else(invalid)?;
        let certificates = match certificates(args.registry_ca.as_deref()) {
            Ok(certificates) => certificates,
            Err(_) if scheme == "http" => Vec::new(),
            Err(error) => {
                let message = format!(
                    "cannot verify the registry {host}: {error}; --registry-ca names a PEM file"
                );
                return Err(Error::context(message)(error));
            }
        };
        Ok(RepositoryClient {
            agent: agent(&certificates),
            endpoint: format!("{scheme}://{api}"),
            credentials: Credentials::find(args, host)?,
            host: host.clone(),
            origin,
            repository: reference.repository.clone(),
            access,
            authorization: RefCell::default(),
        })
    }

    /// The image manifest with this tag or digest; nothing if there is none.
    pub(super) fn image_manifest(&self, tag: &str) -> Result<Option<Vec<u8>>, Error> {
        let accept = [IMAGE_MANIFEST_TYPES, IMAGE_INDEX_TYPES]
            .concat()
            .join(", ");
        self.retried(|| {
            let mut call = Call::new(Method::GET, self.url("manifests", tag));
            call.accept = &accept;
            let (head, body) = self.send(&call)?;
            match head.status {
                StatusCode::OK => {
                    let what = format!("the image manifest of {tag}");
                    read(body, MAX_IMAGE_MANIFEST_BYTES, &what, None).map(Some)
                }
                StatusCode::NOT_FOUND => Ok(None),
                _ => Err(self.refusal(&head, body)),
            }
        })
    }

    /// The bytes of a blob, which have its digest and length. `limit` is the most that it may have.
    pub(super) fn blob(&self, blob: &Descriptor, name: &str, limit: u64) -> Result<Bytes, Error> {
        let Descriptor { digest, size, .. } = blob;
        if *size > limit {
            return Err(Error::failed(format!(
                "{name} has {size} bytes; at most {limit} are allowed"
            )));
        }
        let progress = Progress::download(name, *size);
        let bytes = self.retried(|| {
            progress.start_at(0);
            let call = Call::new(Method::GET, self.url("blobs", &digest.to_string()));
            let (head, body) = self.send(&call)?;
            match head.status {
                StatusCode::OK => read(body, *size, name, Some(&progress)),
                StatusCode::NOT_FOUND => Err(RequestError::Final(Error::failed(format!(
                    "{} does not have {name} ({digest}) any more; push the artifact again",
                    self.host
                )))),
                _ => Err(self.refusal(&head, body)),
            }
            .and_then(|bytes| match bytes.len() as u64 == *size {
                true => Ok(bytes),
                false => Err(RequestError::Transient(Transient::new(
                    "the connection was cut",
                ))),
            })
        });
        progress.finish();
        let bytes = bytes?;
        let found = Digest::of(&bytes);
        match found == *digest {
            true => Ok(bytes.into()),
            false => Err(Error::failed(format!(
                "{name} arrived with the digest {found} instead of {digest}: the registry's copy is damaged or was \
                 changed; push the artifact again"
            ))),
        }
    }

    /// Puts a blob, unless the repository has it.
    pub(super) fn push_blob(&self, bytes: &[u8], name: &str) -> Result<(), Error> {
        let digest = Digest::of(bytes).to_string();
        self.retried(|| {
            let call = Call::new(Method::HEAD, self.url("blobs", &digest));
            let (head, body) = self.send(&call)?;
            match head.status {
                StatusCode::OK => return Ok(()),
                StatusCode::NOT_FOUND => {}
                _ => return Err(self.refusal(&head, body)),
            }
            let call = Call::new(Method::POST, self.url("blobs", "uploads/"));
            let (head, body) = self.send(&call.with_body(&[], None))?;
            if head.status != StatusCode::ACCEPTED {
                return Err(self.refusal(&head, body));
            }
            let url = self.upload_url(&head.headers, &digest)?;
            let progress = Progress::upload(name, bytes.len());
            let call = Call::new(Method::PUT, url);
            let sent = self.send(&call.with_body(bytes, Some(&progress)));
            progress.finish();
            let (head, body) = sent?;
            match head.status {
                StatusCode::CREATED => Ok(()),
                _ => Err(self.refusal(&head, body)),
            }
        })
    }

    /// Puts an image manifest under a tag.
    pub(super) fn push_image_manifest(&self, tag: &str, bytes: &[u8]) -> Result<(), Error> {
        self.retried(|| {
            let mut call = Call::new(Method::PUT, self.url("manifests", tag));
            call.content_type = IMAGE_MANIFEST_TYPE;
            let (head, body) = self.send(&call.with_body(bytes, None))?;
            match head.status {
                StatusCode::CREATED => Ok(()),
                _ => Err(self.refusal(&head, body)),
            }
        })
    }

    /// `/v2/REPOSITORY/KIND/NAME`; no part of it needs an escape.
    fn url(&self, kind: &str, name: &str) -> String {
        format!("{}/v2/{}/{kind}/{name}", self.endpoint, self.repository)
    }

    /// Where an upload continues, with the digest.
    fn upload_url(&self, headers: &HeaderMap, digest: &str) -> Result<String, RequestError> {
        let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.unwrap_or_default();
        let base = self.endpoint.parse::<Uri>();
        let url = base.ok().and_then(|base| resolve(&base, location));
        let url = url.ok_or_else(|| self.invalid_address(location))?;
        let sign = if url.query().is_some() { '&' } else { '?' };
        Ok(format!("{url}{sign}digest={digest}"))
    }

    /// Runs `attempt` again after failures that may pass.
    fn retried<T>(&self, attempt: impl FnMut() -> Result<T, RequestError>) -> Result<T, Error> {
        let what = format!("cannot use the registry {}", self.host);
        let wait = |failure: &Transient, failures| {
            let advice = "check its address and the network";
            wait_after(failure, failures, &note, &what, advice)
        };
        retried(wait, attempt)
    }

    /// Sends a request, and again with the login if the registry asks for it.
    fn send(&self, call: &Call<'_>) -> Result<(Parts, Body), RequestError> {
        let (response, is_registry) = self.send_once(call)?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::UNAUTHORIZED || !is_registry {
            return Ok((head, body));
        }
        match self.authorize(&head.headers)? {
            true => {
                let (response, _) = self.send_once(call)?;
                Ok(response.into_parts())
            }
            false => Ok((head, body)),
        }
    }

    /// Sends a request and follows redirects of reads. Returns whether the response is the registry's own.
    fn send_once(&self, call: &Call<'_>) -> Result<(Response<Body>, bool), RequestError> {
        let mut uri: Uri = call
            .url
            .parse()
            .map_err(|_| self.invalid_address(&call.url))?;
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&uri);
            let origin = origin.ok_or_else(|| self.invalid_address(&uri.to_string()))?;
            let is_registry = origin == self.origin;
            if self.origin.scheme == "https" && origin.scheme != "https" {
                return Err(self.invalid_address(&uri.to_string()));
            }
            let mut request = Request::builder()
                .method(&call.method)
                .uri(&uri)
                .header(ACCEPT, call.accept)
                // Digests are those of the bytes, not of a compressed form.
                .header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = self.authorization.borrow().as_ref()
                && is_registry
            {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = match call.body {
                Some((bytes, progress)) => {
                    let request = request
                        .header(CONTENT_TYPE, call.content_type)
                        .header(CONTENT_LENGTH, bytes.len());
                    let mut reader = ReadWithProgress {
                        inner: bytes,
                        progress,
                    };
                    self.run(request.body(SendBody::from_reader(&mut reader)), &origin)?
                }
                None => self.run(request.body(()), &origin)?,
            };
            let is_read = matches!(call.method, Method::GET | Method::HEAD);
            if !response.status().is_redirection() || !is_read {
                return Ok((response, is_registry));
            }
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let location = location.unwrap_or_default();
            uri = resolve(&uri, location).ok_or_else(|| self.invalid_address(location))?;
        }
        Err(RequestError::Final(Error::failed(format!(
            "the registry {} redirects more than {MAX_REDIRECTS} times; check its address",
            self.host
        ))))
    }

    /// Sends a request to a server.
    fn run(
        &self,
        request: Result<Request<impl AsSendBody>, http::Error>,
        origin: &Origin,
    ) -> Result<Response<Body>, RequestError> {
        let request = request.map_err(|error| self.failure(&error.into()))?;
        let config = self.agent.configure_request(request);
        let config = config.timeout_global(Some(REQUEST_TIMEOUT));
        let request = match origin.is_loopback() {
            true => config.proxy(None).build(),
            false => config.build(),
        };
        self.agent
            .run(request)
            .map_err(|error| self.failure(&error))
    }

    /// Gets what the registry's challenge asks for. Returns whether there is something new to send.
    fn authorize(&self, headers: &HeaderMap) -> Result<bool, RequestError> {
        let value = match Challenge::of(headers) {
            Some(Challenge::Basic) => self.credentials.basic(),
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => self.token(&realm, service.as_deref(), scope.as_deref())?,
            None => None,
        };
        let mut authorization = self.authorization.borrow_mut();
        let is_new = value.is_some() && *authorization != value;
        *authorization = value;
        Ok(is_new)
    }

    /// `Authorization` with a token of the server at `realm`.
    fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<Option<HeaderValue>, RequestError> {
        let origin = realm.parse::<Uri>().ok().and_then(|uri| Origin::of(&uri));
        let origin = origin.ok_or_else(|| self.invalid_address(realm))?;
        if self.origin.is_private() && !origin.is_private() {
            return Err(self.invalid_address(realm));
        }
        let actions = match self.access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let own_scope = format!("repository:{}:{actions}", self.repository);
        let mut fields = vec![("scope", scope.unwrap_or(&own_scope))];
        fields.extend(service.map(|service| ("service", service)));
        let encode = |fields: &[(&str, &str)]| {
            let pairs = fields.iter().map(|(name, value)| {
                format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
            });
            Vec::from_iter(pairs).join("&")
        };
        let response = match &self.credentials {
            Credentials::Identity(token) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "corral"),
                    ("refresh_token", token),
                ]);
                let request =
                    Request::post(realm).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
                self.run(request.body(encode(&fields)), &origin)?
            }
            credentials => {
                let sign = if realm.contains('?') { '&' } else { '?' };
                let mut request = Request::get(format!("{realm}{sign}{}", encode(&fields)));
                if let Some(basic) = credentials.basic() {
                    request = request.header(AUTHORIZATION, basic);
                }
                self.run(request.body(()), &origin)?
            }
        };
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(self.refusal(&head, body));
        }
        let answer = read(body, MAX_TOKEN_BYTES, "the registry's token", None)?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let token = answer["token"].as_str().or(answer["access_token"].as_str());
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let Some(mut value) = value else {
            return Err(RequestError::Final(Error::failed(format!(
                "{realm} gives no token for the registry {}; check its address",
                self.host
            ))));
        };
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// A body that updates a progress bar.
struct ReadWithProgress<'a, R> {
    inner: R,
    progress: Option<&'a Progress>,
}

impl<R: Read> Read for ReadWithProgress<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(progress) = self.progress {
            progress.add(count);
        }
        Ok(count)
    }
}

/// Reads a body of at most `limit` bytes.
fn read(
    body: Body,
    limit: u64,
    what: &str,
    progress: Option<&Progress>,
) -> Result<Vec<u8>, RequestError> {
    let inner = body.into_reader().take(limit + 1);
    let mut bytes = Vec::new();
    let read = ReadWithProgress { inner, progress }.read_to_end(&mut bytes);
    read.map_err(|error| {
        let cause = format!("the connection was cut ({error})");
        RequestError::Transient(Transient::new(cause))
    })?;
    if bytes.len() as u64 > limit {
        return Err(RequestError::Final(Error::failed(format!(
            "the registry sends more than {limit} bytes for {what}; its copy was changed, so push the artifact again"
        ))));
    }
    Ok(bytes)
}
