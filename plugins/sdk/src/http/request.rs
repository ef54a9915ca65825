//! What a client asks.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use wasip3::http::types::{ErrorCode, Method, Request as HostRequest};
use wasip3::wit_bindgen::StreamResult;
use wasip3::wit_future;

use crate::Error;

/// A longer body is refused, unless [`Request::with_limit`] says otherwise: 1 MiB.
pub const BODY_LIMIT: usize = 1024 * 1024;

/// A request.
///
/// ```
/// use corral_sdk::Request;
///
/// let request = Request::get("/chat/list?max=5&name=A%20B").with_header("X-One", "1");
/// assert_eq!((request.method(), request.path()), ("GET", "/chat/list"));
/// assert_eq!(request.parameter("name").as_deref(), Some("A B"));
/// assert_eq!(request.header("x-one"), Some("1"));
/// ```
pub struct Request {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Body,
    limit: usize,
}

enum Body {
    /// Still to be read from the client.
    Arriving(HostRequest, Broken),
    Here(Vec<u8>),
    Taken,
}

/// Why the body did not arrive whole, once that is known.
pub(super) type Broken = Rc<RefCell<Option<ErrorCode>>>;

impl Request {
    /// A request as a client would send it, for tests. `target` is a path, perhaps with a query.
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Body::Here(Vec::new()),
            limit: BODY_LIMIT,
        }
    }

    /// A POST, for tests.
    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    /// A GET, for tests.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// One header more, for tests.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers
            .push((name.to_owned(), value.as_bytes().to_vec()));
        self
    }

    /// With this body, for tests.
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Body::Here(body.into());
        self
    }

    /// With this value as JSON, for tests. A value that has no JSON form gives an empty body.
    pub fn with_json(self, value: &impl Serialize) -> Self {
        self.with_body(serde_json::to_vec(value).unwrap_or_default())
    }

    pub(super) fn from_host(request: HostRequest, broken: &Broken) -> Self {
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
        let mut told = Self::new(&method, &target);
        told.headers = request.get_headers().copy_all();
        told.body = Body::Arriving(request, Rc::clone(broken));
        told
    }

    /// The method, in capitals as a rule.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// 405, unless the method is this one.
    pub fn expect_method(&self, method: &str) -> Result<(), Error> {
        if self.method == method {
            return Ok(());
        }
        let detail = format!("this route takes {method}, not {}", self.method);
        Err(Error::method_not_allowed(method, detail))
    }

    /// The path, the route of the deployment included.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What stands behind the first `?`; empty for nothing.
    pub fn query(&self) -> &str {
        &self.query
    }

    /// The first parameter of the query that has this name, decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key) == name).then(|| decoded(value))
        })
    }

    /// The first header of this name (in any case), if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter();
        let (_, value) = found.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }

    /// All headers, as they came.
    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.headers
    }

    /// With another limit for the body than [`BODY_LIMIT`], in bytes.
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The body. Longer than the limit is 413. It can be read once.
    pub async fn body(&mut self) -> Result<Vec<u8>, Error> {
        let body = match mem::replace(&mut self.body, Body::Taken) {
            Body::Arriving(request, broken) => read(request, self.limit, &broken).await?,
            Body::Here(body) => body,
            Body::Taken => {
                let text = "the plugin read the body of its request twice";
                return Err(Error::Failed(text.to_owned()));
            }
        };
        if body.len() > self.limit {
            return Err(too_large(self.limit));
        }
        Ok(body)
    }

    /// The body as text; 400 if it is not UTF-8.
    pub async fn text(&mut self) -> Result<String, Error> {
        String::from_utf8(self.body().await?)
            .map_err(|error| Error::bad_request("invalid-text", format!("the body: {error}")))
    }

    /// The body, read from JSON of any declared type; 400 if it is not JSON (`invalid-json`), or not such
    /// JSON (`invalid-body`).
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
            Category::Data => Error::bad_request("invalid-body", format!("the body: {error}")),
            _ => Error::bad_request("invalid-json", format!("the body is not JSON: {error}")),
        })
    }
}

fn too_large(limit: usize) -> Error {
    let detail = format!("the body has more than {limit} bytes, which is the limit");
    Error::new(413, "body-too-large", detail)
}

async fn read(request: HostRequest, limit: usize, broken: &Broken) -> Result<Vec<u8>, Error> {
    // Dropping the writer says that the request was processed.
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
            // Nobody is there to be told; `serve` hands it back to the host.
            *broken.borrow_mut() = Some(error);
            Err(Error::Cancelled)
        }
    }
}

/// A part of a query, its `%XX` and `+` decoded. What is not UTF-8 becomes U+FFFD.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = after;
        bytes.push(match (first, escaped) {
            (b'%', Some(byte)) => {
                rest = &after[2..];
                byte
            }
            (b'+', _) => b' ',
            _ => first,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn a_query_is_decoded() {
        let request = Request::get("/x?a=1&b=%c3%A9+%2&c&a=2&%64=?=");
        for (name, value) in [
            ("a", Some("1")),
            ("b", Some("é %2")),
            ("c", Some("")),
            ("d", Some("?=")),
            ("e", None),
        ] {
            assert_eq!(request.parameter(name).as_deref(), value, "{name}");
        }
        assert_eq!(Request::get("/x").parameter("a"), None);
    }

    #[test]
    fn a_body_has_a_limit_and_is_read_once() {
        let mut request = Request::post("/").with_body("12345").with_limit(5);
        assert_eq!(block_on(request.body()).unwrap(), b"12345");
        assert_eq!(block_on(request.body()).unwrap_err().status(), 500);
        let mut long = Request::post("/").with_body("123456").with_limit(5);
        let error = block_on(long.text()).unwrap_err();
        assert_eq!((error.status(), error.code()), (413, "body-too-large"));
        let mut bytes = Request::post("/").with_body([0xff]);
        assert_eq!(block_on(bytes.text()).unwrap_err().code(), "invalid-text");
    }

    #[test]
    fn json_that_is_none_has_another_code() {
        let mut request = Request::post("/").with_body("{");
        let error = block_on(request.json::<serde_json::Value>()).unwrap_err();
        assert_eq!(error.code(), "invalid-json");
        assert!(error.to_string().ends_with("line 1 column 1"), "{error}");
    }

    #[test]
    fn the_wrong_method_is_told_the_right_one() {
        assert!(Request::post("/").expect_method("POST").is_ok());
        let error = Request::get("/").expect_method("POST").unwrap_err();
        assert_eq!(error.status(), 405);
        assert_eq!(error.headers(), [("allow".to_owned(), "POST".to_owned())]);
    }
}
