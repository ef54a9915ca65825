//! HTTP requests.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use wasip3::http::types::{ErrorCode, Method, Request as HostRequest, Scheme};
use wasip3::wit_bindgen::StreamResult;
use wasip3::wit_future;

#[cfg(feature = "decompression")]
use super::decompression;
use crate::Error;

/// Default limit for the request body: 1 MiB. [`Request::with_body_limit`] changes it.
pub const DEFAULT_BODY_LIMIT: usize = 1024 * 1024;

/// An HTTP request.
///
/// ```
/// use corral_sdk::Request;
///
/// let request = Request::get("/chat/list?max=5&name=A%20B").with_header("X-One", "1");
/// assert_eq!((request.method(), request.path()), ("GET", "/chat/list"));
/// assert_eq!(request.query_parameter("name").as_deref(), Some("A B"));
/// assert_eq!(request.header("x-one"), Some("1"));
/// ```
pub struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Body,
    limit: usize,
    /// It is no longer the request that came.
    pub(super) is_changed: bool,
    /// Of a request whose body was read, if `keeps_origin`.
    pub(super) origin: Option<Origin>,
    /// Middleware may pass it on.
    pub(super) keeps_origin: bool,
}

/// Where a request was sent to.
#[derive(Default)]
pub(super) struct Origin {
    pub(super) scheme: Option<Scheme>,
    pub(super) authority: Option<String>,
}

impl Origin {
    pub(super) fn of(request: &HostRequest) -> Self {
        Origin {
            scheme: request.get_scheme(),
            authority: request.get_authority(),
        }
    }
}

pub(super) enum Body {
    /// The client is still sending the body.
    Incoming(HostRequest, BodyError),
    Buffered(Vec<u8>),
    Consumed,
}

/// The transport error that cut off the body, if any.
pub(crate) type BodyError = Rc<RefCell<Option<ErrorCode>>>;

impl Request {
    /// Creates a request for tests. `target` is a path, optionally with a query.
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Body::Buffered(Vec::new()),
            limit: DEFAULT_BODY_LIMIT,
            is_changed: false,
            origin: None,
            keeps_origin: false,
        }
    }

    /// Creates a POST request for tests.
    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    /// Creates a GET request for tests.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// Adds a header, for tests and for the next handler.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.is_changed = true;
        self.headers
            .push((name.to_owned(), value.as_bytes().to_vec()));
        self
    }

    /// Sets the body, for tests and for the next handler. A `Content-Length` becomes its length.
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let mut headers = self.headers.iter_mut();
        let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        if let Some((_, length)) = length {
            *length = body.len().to_string().into_bytes();
        }
        self.body = Body::Buffered(body);
        self
    }

    /// Sets the body to a value as JSON, for tests. Empty if the value has no JSON form.
    pub fn with_json(self, value: &impl Serialize) -> Self {
        self.with_body(serde_json::to_vec(value).unwrap_or_default())
    }

    pub(super) fn from_host(request: HostRequest, body_error: &BodyError) -> Self {
        let method = match request.get_method() {
            Method::Get => "GET".to_owned(),
            Method::Head => "HEAD".to_owned(),
            Method::Post => "POST".to_owned(),
            Method::Put => "PUT".to_owned(),
            Method::Delete => "DELETE".to_owned(),
            Method::Connect => "CONNECT".to_owned(),
            Method::Options => "OPTIONS".to_owned(),
            Method::Trace => "TRACE".to_owned(),
            Method::Patch => "PATCH".to_owned(),
            Method::Other(name) => name,
        };
        let target = request.get_path_with_query().unwrap_or_default();
        let mut converted = Self::new(&method, &target);
        converted.headers = request.get_headers().copy_all();
        converted.body = Body::Incoming(request, Rc::clone(body_error));
        converted
    }

    /// The method, such as `POST`.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns an error with status 405 unless the method is `method`. `HEAD` counts as `GET`: the host
    /// sends the response without its body.
    pub fn expect_method(&self, method: &str) -> Result<(), Error> {
        if self.method == method || (method == "GET" && self.method == "HEAD") {
            return Ok(());
        }
        let detail = format!("the method is {}; this route expects {method}", self.method);
        Err(Error::method_not_allowed(method, detail))
    }

    /// The path, including the deployment's route.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The text after the first `?`, or an empty string.
    pub fn query(&self) -> &str {
        &self.query
    }

    /// The first query parameter of this name, decoded.
    pub fn query_parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
    }

    /// The first header of this name (case-insensitive), if it is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter();
        let (_, value) = found.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }

    /// All headers, as received.
    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.headers
    }

    /// Sets the limit for the body in bytes, [`DEFAULT_BODY_LIMIT`] by default.
    pub fn with_body_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Reads the body; 413 if it is longer than the limit. It can be read once.
    pub async fn body(&mut self) -> Result<Vec<u8>, Error> {
        let body = match mem::replace(&mut self.body, Body::Consumed) {
            Body::Incoming(request, body_error) => {
                if self.keeps_origin {
                    self.origin = Some(Origin::of(&request));
                }
                read(request, self.limit, &body_error).await?
            }
            Body::Buffered(body) => body,
            Body::Consumed => {
                let text = "the plugin read the body of its request twice";
                return Err(Error::Failed(text.to_owned()));
            }
        };
        if body.len() > self.limit {
            return Err(too_large(self.limit));
        }
        Ok(body)
    }

    /// Reads the body and decompresses it as `Content-Encoding` says, `gzip` or `deflate`; 415 if it names
    /// another one. The limit holds before and after that.
    #[cfg(feature = "decompression")]
    pub async fn decompressed_body(&mut self) -> Result<Vec<u8>, Error> {
        let body = self.body().await?;
        let headers = self.headers.iter();
        let encodings = headers.filter(|(name, _)| name.eq_ignore_ascii_case("content-encoding"));
        let encodings: Vec<_> = encodings
            .map(|(_, value)| std::str::from_utf8(value).unwrap_or("?"))
            .collect();
        match encodings.is_empty() {
            true => Ok(body),
            false => decompression::decompress(&encodings, body, self.limit),
        }
    }

    /// Reads the body as text; 400 if it is not UTF-8.
    pub async fn text(&mut self) -> Result<String, Error> {
        String::from_utf8(self.body().await?).map_err(|error| {
            Error::bad_request(
                "invalid-text",
                format!("the body is not valid UTF-8: {error}"),
            )
        })
    }

    /// Reads the body from JSON of any declared content type; 400 if it is not JSON
    /// (`invalid-json`) or does not match `T` (`invalid-body`).
    ///
    /// ```
    /// use corral_sdk::{Request, testing::block_on};
    ///
    /// #[derive(serde::Deserialize)]
    /// #[serde(deny_unknown_fields)]
    /// struct Body {
    ///     prompt: String,
    /// }
    ///
    /// let mut request = Request::post("/").with_body(r#"{"prompt": "Hi"}"#);
    /// assert_eq!(block_on(request.json::<Body>()).unwrap().prompt, "Hi");
    /// let mut wrong = Request::post("/").with_body("{}");
    /// let error = block_on(wrong.json::<Body>()).err().unwrap();
    /// assert_eq!((error.status(), error.code()), (400, "invalid-body"));
    /// ```
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let body = self.body().await?;
        serde_json::from_slice(&body).map_err(|error| match error.classify() {
            // serde_json's text ends with "at line L column C".
            Category::Data => {
                Error::bad_request("invalid-body", format!("the body does not match: {error}"))
            }
            _ => Error::bad_request("invalid-json", format!("the body is not JSON: {error}")),
        })
    }
}

pub(super) fn too_large(limit: usize) -> Error {
    let detail = format!("the body exceeds the limit of {limit} bytes");
    Error::new(413, "request-too-large", detail)
}

async fn read(
    request: HostRequest,
    limit: usize,
    body_error: &BodyError,
) -> Result<Vec<u8>, Error> {
    // Dropping the writer reports that the request was processed.
    let (_, processed) = wit_future::new(|| Ok(()));
    let (mut stream, trailers) = HostRequest::consume_body(request, processed);
    let mut body = Vec::with_capacity(4096);
    loop {
        if body.len() == body.capacity() {
            body.reserve(body.len());
        }
        let (status, read) = stream.read(body).await;
        body = read;
        if body.len() > limit {
            return Err(too_large(limit));
        }
        if !matches!(status, StreamResult::Complete(_)) {
            break;
        }
    }
    match trailers.await {
        Ok(_) => Ok(body),
        Err(error) => {
            // The client is gone; `serve` returns the error to the host.
            *body_error.borrow_mut() = Some(error);
            Err(Error::Cancelled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn query_parameters_are_decoded() {
        let request = Request::get("/x?a=1&b=%c3%A9+%2&c&a=2&%64=?=");
        for (name, value) in [
            ("a", Some("1")),
            ("b", Some("é %2")),
            ("c", Some("")),
            ("d", Some("?=")),
            ("e", None),
        ] {
            assert_eq!(request.query_parameter(name).as_deref(), value, "{name}");
        }
        assert_eq!(Request::get("/x").query_parameter("a"), None);
    }

    #[test]
    fn body_has_a_limit_and_is_read_once() {
        let mut request = Request::post("/").with_body("12345").with_body_limit(5);
        assert_eq!(block_on(request.body()).unwrap(), b"12345");
        assert_eq!(block_on(request.body()).unwrap_err().status(), 500);
        let mut long = Request::post("/").with_body("123456").with_body_limit(5);
        let error = block_on(long.text()).unwrap_err();
        assert_eq!((error.status(), error.code()), (413, "request-too-large"));
        let mut bytes = Request::post("/").with_body([0xff]);
        assert_eq!(block_on(bytes.text()).unwrap_err().code(), "invalid-text");
    }

    #[test]
    fn malformed_json_has_its_own_code() {
        let mut request = Request::post("/").with_body("{");
        let error = block_on(request.json::<serde_json::Value>()).unwrap_err();
        assert_eq!(error.code(), "invalid-json");
        assert!(error.to_string().ends_with("line 1 column 1"), "{error}");
    }

    #[test]
    fn wrong_method_answers_405_with_allow() {
        assert!(Request::post("/").expect_method("POST").is_ok());
        assert!(Request::new("HEAD", "/").expect_method("GET").is_ok());
        let error = Request::get("/").expect_method("POST").unwrap_err();
        assert_eq!(error.status(), 405);
        assert_eq!(error.headers(), [("allow".to_owned(), "POST".to_owned())]);
    }
}
