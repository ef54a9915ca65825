//! HTTP responses.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use serde::Serialize;
use wasip3::http::types::Response as HostResponse;

use super::EventWriter;
use super::text_events::{EventFormat, TextEvents};
use crate::{Error, Generation, Outcome};

/// An HTTP response.
///
/// ```
/// use corral_sdk::{Response, testing::block_on};
///
/// let response = Response::json(&serde_json::json!({"ok": true})).with_status(201);
/// assert_eq!((response.status(), response.header("content-type")), (201, Some("application/json")));
/// assert_eq!(block_on(response.read()), br#"{"ok":true}"#);
/// ```
pub struct Response {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Body,
    /// It is no longer the response that a handler gave to middleware.
    pub(super) is_changed: bool,
}

pub(super) enum Body {
    /// A handler's response as middleware got it.
    Forwarded(HostResponse),
    Stream(Write),
    Whole(Vec<u8>),
    TextEvents(Box<TextEvents>),
}

/// Writes a body to its end, or cuts it off.
pub(super) type Write =
    Box<dyn FnOnce(EventWriter) -> Pin<Box<dyn Future<Output = Result<(), Error>>>>>;

impl Response {
    /// Creates a 200 with bytes of this content type.
    pub fn bytes(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Response {
            status: 200,
            headers: vec![("content-type".to_owned(), content_type.into())],
            body: Body::Whole(body.into()),
            is_changed: true,
        }
    }

    /// Creates a 200 with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::bytes("text/plain; charset=utf-8", text.into())
    }

    /// Creates a 200 with a value as JSON, or a 500 if the value has no JSON form (a map with
    /// non-string keys).
    pub fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::bytes("application/json", body),
            Err(error) => Error::Failed(format!("the answer has no JSON form: {error}")).into(),
        }
    }

    /// Creates a 204.
    pub fn empty() -> Self {
        Response {
            status: 204,
            headers: Vec::new(),
            body: Body::Whole(Vec::new()),
            is_changed: true,
        }
    }

    /// Creates a 200 with server-sent events, which the function writes one by one. An error that
    /// it returns becomes a last event, named `error`, with problem details. The client gets the
    /// status when the handler returns, and comments while the stream is silent. With
    /// [`Generation::wait_for_start`](crate::Generation::wait_for_start) before it, an error before
    /// the first token still sets the status, but a slow prompt keeps the client waiting for it.
    ///
    /// ```
    /// use corral_sdk::{Error, Response, testing::block_on};
    ///
    /// let response = Response::events(async |events| {
    ///     events.data("one").await?;
    ///     events.json(&2).await?;
    ///     Ok(())
    /// });
    /// assert_eq!(block_on(response.read()), b"data: one\n\ndata: 2\n\n");
    /// ```
    pub fn events(send: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static) -> Self {
        Self::streamed("text/event-stream", async move |events| {
            if let Err(error) = send(events).await {
                events.error(&error).await;
            }
            Ok(())
        })
    }

    /// Creates a 200 with what the function writes.
    fn streamed(
        content_type: &str,
        write: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static,
    ) -> Self {
        Self::bytes(content_type, Vec::new())
            .with_stream(write)
            .with_header("cache-control", "no-cache")
    }

    /// Creates a 200 with an event for each chunk of a generation's text. The host sends these
    /// events without running the plugin, so streaming costs a fraction of
    /// [`events`](Self::events). At the end, `end` receives the outcome and writes the remaining
    /// events. Its errors are reported as those of `events`.
    ///
    /// ```
    /// use corral_sdk::{GenerateOptions, Model, Response, http::EventFormat, testing::Script};
    /// use serde_json::json;
    ///
    /// let script = Script::new().answers("12+7=", "19");
    /// let body = script.run(async {
    ///     let sequence = Model::open_default().await?.sequence()?;
    ///     sequence.append("12+7=")?;
    ///     // An error before the first token sets the status.
    ///     let generation = sequence.generate(&GenerateOptions::new(8))?.wait_for_start().await?;
    ///     let format = EventFormat::json(|text| json!({"text": text}));
    ///     let response = Response::text_events(generation, format, async |outcome, events| {
    ///         events.json(&json!({"tokens": outcome?.generated_tokens})).await
    ///     });
    ///     Ok::<_, corral_sdk::Error>(response.read().await)
    /// });
    /// let events = "data: {\"text\":\"1\"}\n\ndata: {\"text\":\"9\"}\n\ndata: {\"tokens\":3}\n\n";
    /// assert_eq!(body.unwrap(), events.as_bytes());
    /// ```
    pub fn text_events(
        generation: Generation,
        format: EventFormat,
        end: impl AsyncFnOnce(Result<Outcome, Error>, &mut EventWriter) -> Result<(), Error> + 'static,
    ) -> Self {
        let forward = TextEvents {
            generation,
            format,
            end: Box::new(move |outcome, events| Box::pin(end(outcome, events))),
        };
        let mut response = Self::bytes("text/event-stream", Vec::new());
        response.body = Body::TextEvents(Box::new(forward));
        response.with_header("cache-control", "no-cache")
    }

    /// Creates a 200 with lines of JSON, which the function writes one by one with
    /// [`EventWriter::json_line`]. An error that it returns becomes a last line, an object whose only
    /// member `error` has problem details.
    ///
    /// ```
    /// use corral_sdk::{Error, Response, testing::block_on};
    ///
    /// let response = Response::json_lines(async |lines| {
    ///     lines.json_line(&1).await?;
    ///     lines.json_line(&"two").await
    /// });
    /// assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    /// assert_eq!(block_on(response.read()), b"1\n\"two\"\n");
    /// ```
    pub fn json_lines(
        send: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static,
    ) -> Self {
        Self::streamed("application/x-ndjson", async move |lines| {
            if let Err(error) = send(lines).await {
                lines.error_line(&error).await;
            }
            Ok(())
        })
    }

    /// Sets the status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.is_changed = true;
        self.status = status;
        self
    }

    /// Adds a header. A content type or length replaces the existing one.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("content-type") || is("content-length") {
            self.headers.retain(|(known, _)| !is(known));
        }
        self.is_changed = true;
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first header of this name (case-insensitive), if it is UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }

    /// Reads the whole body, including events, for tests.
    pub async fn read(self) -> Vec<u8> {
        self.read_events(usize::MAX).await
    }

    /// Reads the body as a client that disconnects after `limit` events, for tests.
    pub async fn read_events(self, limit: usize) -> Vec<u8> {
        self.body.read_events(limit).await
    }
}

impl Body {
    /// Reads a body that the plugin makes. One that the host forwards has nothing here: `BodyReader` reads it.
    pub(super) async fn read_events(self, limit: usize) -> Vec<u8> {
        match self {
            Body::Forwarded(_) => Vec::new(),
            Body::Stream(write) => {
                let buffer = Rc::new(RefCell::new(Vec::new()));
                // As far as it was written, as a client sees it.
                let _ = write(EventWriter::to_buffer(&buffer, limit)).await;
                buffer.take()
            }
            Body::Whole(body) => body,
            Body::TextEvents(events) => {
                let buffer = Rc::new(RefCell::new(Vec::new()));
                events.write(EventWriter::to_buffer(&buffer, limit)).await;
                buffer.take()
            }
        }
    }
}

impl From<Error> for Response {
    fn from(error: Error) -> Self {
        let mut response = Self::bytes("application/problem+json", error.to_json());
        response.status = error.status();
        let headers = error.headers().into_iter();
        let headers = headers.map(|(name, value)| (name, value.into_bytes()));
        response.headers.extend(headers);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn error_response_has_status_and_headers() {
        let response = Response::from(Error::method_not_allowed("POST", "expected POST"));
        assert_eq!(response.status(), 405);
        assert_eq!(response.header("Allow"), Some("POST"));
        let expected = Some("application/problem+json");
        assert_eq!(response.header("content-type"), expected);
        let body = block_on(response.read());
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["code"], "method-not-allowed");
    }

    #[test]
    fn content_type_is_replaced_and_other_headers_repeat() {
        let response = Response::json(&1)
            .with_header("Content-Type", "text/csv")
            .with_header("set-cookie", "a=1")
            .with_header("set-cookie", "b=2");
        let headers = response.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_slice()));
        let headers: Vec<_> = headers.collect();
        assert_eq!(
            headers,
            [
                ("Content-Type", &b"text/csv"[..]),
                ("set-cookie", b"a=1"),
                ("set-cookie", b"b=2")
            ]
        );
    }

    #[test]
    fn error_becomes_the_last_event() {
        let response = Response::events(async |events| {
            events.data("a").await?;
            Err(Error::Deadline)
        });
        assert_eq!(response.header("cache-control"), Some("no-cache"));
        let text = String::from_utf8(block_on(response.read())).unwrap();
        let (first, last) = text.split_once("\n\n").unwrap();
        assert_eq!(first, "data: a");
        assert!(last.starts_with("event: error\ndata: {"), "{last}");
        assert!(last.contains("\"code\":\"deadline\""), "{last}");
    }

    #[test]
    fn error_becomes_the_last_line() {
        let response = Response::json_lines(async |lines| {
            lines.json_line(&"a\nb").await?;
            Err(Error::Deadline)
        });
        let text = String::from_utf8(block_on(response.read())).unwrap();
        let (first, last) = text.split_once('\n').unwrap();
        assert_eq!(first, r#""a\nb""#);
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["error"]["code"], "deadline");
    }

    #[test]
    fn disconnect_ends_the_stream() {
        let sent = Rc::new(RefCell::new(0));
        let counted = Rc::clone(&sent);
        let response = Response::events(async move |events| {
            loop {
                events.data("x").await?;
                *counted.borrow_mut() += 1;
            }
        });
        let body = block_on(response.read_events(3));
        assert_eq!((body.len(), *sent.borrow()), (3 * "data: x\n\n".len(), 3));
    }
}
