//! Requests and responses of middleware: passed on as they came, or made anew from what changed.

use std::mem;
use std::pin::Pin;

use wasip3::http::types::{
    ErrorCode, Fields, Method, Request as HostRequest, Response as HostResponse, Scheme, Trailers,
};
use wasip3::wit_bindgen::{FutureReader, StreamReader, StreamResult};
use wasip3::{spawn_local, wit_future, wit_stream};

use super::request::{self, Origin};
use super::response::{self, Response};
use super::{EventWriter, Request};
use crate::Error;

/// Most bytes of a piece of a body.
const PIECE: usize = 16 * 1024;

type TrailersFuture = FutureReader<Result<Option<Trailers>, ErrorCode>>;

/// The body of a response, in the pieces in which the handler writes it; see [`Response::take_body`].
pub struct BodyReader(Source);

enum Source {
    Host(StreamReader<u8>, TrailersFuture),
    Own(response::Body),
    Ended,
}

impl BodyReader {
    /// Waits for the next piece, of at most 16 KiB; `None` at the end. An error says that the body is not complete.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match mem::replace(&mut self.0, Source::Ended) {
            Source::Host(mut stream, trailers) => {
                let (status, piece) = stream.read(Vec::with_capacity(PIECE)).await;
                if let StreamResult::Complete(_) = status {
                    self.0 = Source::Host(stream, trailers);
                    return Ok(Some(piece));
                }
                let ended = trailers.await;
                ended.map(|_| None).map_err(|code| {
                    Error::Failed(format!("the body of the response is cut off: {code:?}"))
                })
            }
            Source::Own(body) => Ok(Some(body.read_events(usize::MAX).await)),
            Source::Ended => Ok(None),
        }
    }
}

impl Response {
    pub(crate) fn from_host(response: HostResponse) -> Self {
        Response {
            status: response.get_status_code(),
            headers: response.get_headers().copy_all(),
            body: response::Body::Forwarded(response),
            is_changed: false,
        }
    }

    /// Takes the body of a handler's response, to read it in pieces. The response then has none until it gets another one, and
    /// no `Content-Length`. Trailers are dropped.
    pub fn take_body(&mut self) -> BodyReader {
        self.remove_header("content-length");
        let body = mem::replace(&mut self.body, response::Body::Whole(Vec::new()));
        BodyReader(match body {
            response::Body::Forwarded(response) => {
                let (_, processed) = wit_future::new(|| Ok(()));
                let (stream, trailers) = HostResponse::consume_body(response, processed);
                Source::Host(stream, trailers)
            }
            own => Source::Own(own),
        })
    }

    /// Replaces the body with bytes.
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.remove_header("content-length");
        self.body = response::Body::Whole(body.into());
        self
    }

    /// Replaces the body with what the function writes with [`EventWriter::bytes`]. An error that it returns cuts the body off,
    /// which the client notices.
    pub fn with_stream(
        mut self,
        write: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static,
    ) -> Self {
        self.remove_header("content-length");
        let write = |mut to: EventWriter| {
            let written = async move { write(&mut to).await };
            Box::pin(written) as Pin<Box<dyn Future<Output = Result<(), Error>>>>
        };
        self.body = response::Body::Stream(Box::new(write));
        self
    }

    /// Removes all headers of this name (case-insensitive).
    pub fn without_header(mut self, name: &str) -> Self {
        self.remove_header(name);
        self
    }

    fn remove_header(&mut self, name: &str) {
        self.is_changed = true;
        self.headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }
}

impl Request {
    /// Keeps what a new request for the handler needs, should the body be read.
    pub(crate) fn into_forwardable(mut self) -> Self {
        self.keeps_origin = true;
        self
    }

    /// The request for the next handler: the one that came, if nothing changed.
    pub(crate) fn into_host(self) -> Result<HostRequest, Error> {
        let (request, origin) = match self.body {
            request::Body::Incoming(request, _) if !self.is_changed => return Ok(request),
            request::Body::Incoming(request, _) => {
                let origin = Origin::of(&request);
                let options = request.get_options();
                let (_, processed) = wit_future::new(|| Ok(()));
                let (body, trailers) = HostRequest::consume_body(request, processed);
                let headers = fields(&self.headers)?;
                let (request, _) = HostRequest::new(headers, Some(body), trailers, options);
                (request, origin)
            }
            request::Body::Buffered(bytes) => {
                let (mut writer, body) = wit_stream::new();
                spawn_local(async move { writer.write_all(bytes).await });
                let (_, trailers) = wit_future::new(|| Ok(None));
                let headers = fields(&self.headers)?;
                let (request, _) = HostRequest::new(headers, Some(body), trailers, None);
                (request, self.origin.unwrap_or_default())
            }
            request::Body::Consumed => {
                let text = "the middleware read the body of the request and passed the request on without it; \
                            give it the body again: `with_body`";
                return Err(Error::Failed(text.to_owned()));
            }
        };
        let target = match self.query.is_empty() {
            true => self.path,
            false => format!("{}?{}", self.path, self.query),
        };
        let scheme = origin.scheme.unwrap_or(Scheme::Http);
        let set = request
            .set_method(&method(self.method))
            .and_then(|()| request.set_path_with_query(Some(&target)))
            .and_then(|()| request.set_scheme(Some(&scheme)))
            .and_then(|()| request.set_authority(origin.authority.as_deref()));
        set.map_err(|()| Error::Failed(format!("the host refused the request target {target:?}")))?;
        Ok(request)
    }

    /// Removes all headers of this name (case-insensitive).
    pub fn without_header(mut self, name: &str) -> Self {
        self.is_changed = true;
        self.headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }
}

fn fields(headers: &[(String, Vec<u8>)]) -> Result<Fields, Error> {
    Fields::from_list(headers)
        .map_err(|error| Error::Failed(format!("the host refused a header: {error:?}")))
}

fn method(name: String) -> Method {
    match name.as_str() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        _ => Method::Other(name),
    }
}
