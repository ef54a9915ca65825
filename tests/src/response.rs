//! Responses as a client reads them: whole, or as a stream of server-sent events.

use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// A whole response.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers by lower-case name; repeated ones in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Response {
    pub(crate) fn read(response: ureq::http::Response<ureq::Body>) -> Self {
        let status = response.status().as_u16();
        Self::try_read(response).unwrap_or_else(|error| panic!("the body of a {status}: {error}"))
    }

    pub(crate) fn try_read(
        response: ureq::http::Response<ureq::Body>,
    ) -> Result<Self, ureq::Error> {
        Ok(Response {
            status: response.status().as_u16(),
            headers: headers_of(&response),
            body: response.into_body().read_to_string()?,
        })
    }

    /// The value of a header, the last one if it is repeated.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().rev().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Asserts the status 200; returns the body as JSON.
    #[track_caller]
    pub fn ok_json(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Asserts this status, and that the body contains this text.
    #[track_caller]
    pub fn check_refused(&self, status: u16, text: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.body.contains(text), "{text:?} is not in {self:?}");
    }

    /// The seconds of `Retry-After`, at least 1.
    pub fn retry_after(&self) -> u64 {
        let seconds = self
            .header("retry-after")
            .and_then(|text| text.parse().ok());
        let seconds = seconds.unwrap_or_else(|| panic!("no Retry-After in seconds: {self:?}"));
        assert!(seconds >= 1, "{self:?}");
        seconds
    }

    /// Asserts an RFC 9457 problem with this status and code; returns its detail.
    pub fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let expected = Some("application/problem+json");
        assert_eq!(self.header("content-type"), expected, "{self:?}");
        let body = self.json();
        assert_eq!(body["code"], code, "{self:?}");
        assert_eq!(body["status"], status, "{self:?}");
        assert_eq!(body["type"], "about:blank", "{self:?}");
        assert!(body["title"].is_string(), "{self:?}");
        let detail = body["detail"].as_str();
        detail.expect("a problem has a detail").to_owned()
    }
}

/// A response whose body is read line by line.
pub struct EventStream {
    /// HTTP status.
    pub status: u16,
    /// Headers by lower-case name.
    pub headers: Vec<(String, String)>,
    reader: BufReader<ureq::BodyReader<'static>>,
}

impl EventStream {
    pub(crate) fn new(response: ureq::http::Response<ureq::Body>) -> Self {
        EventStream {
            status: response.status().as_u16(),
            headers: headers_of(&response),
            reader: BufReader::new(response.into_body().into_reader()),
        }
    }

    /// The next line without its line feed; `None` at the end of the body.
    pub fn line(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(line.trim_end_matches('\n').to_owned()))
    }

    /// Reads the next line of `/misbehave/drip`.
    pub fn next_drip(&mut self) {
        let line = self.line().expect("the response goes on");
        assert_eq!(line.as_deref(), Some("drip"));
    }

    /// Asserts that the body is cut off before its end.
    pub fn check_cut_off(mut self) {
        assert_eq!(self.status, 200);
        let rest = std::io::copy(&mut self.reader, &mut std::io::sink());
        rest.expect_err("the body is cut off");
    }

    /// At most this many of the remaining bytes.
    pub fn bytes(&mut self, count: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader.by_ref().take(count).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The data of the next server-sent event; `None` at the end of the body. Skips comments. Panics at
    /// anything else but a one-line event.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let line = self.line().expect("the stream is not cut off")?;
            let separator = self.line().expect("an event ends");
            assert_eq!(separator.as_deref(), Some(""), "after {line:?}");
            if line.starts_with(':') {
                continue;
            }
            let data = line.strip_prefix("data: ");
            let data = data.unwrap_or_else(|| panic!("not an event: {line:?}"));
            return Some(data.to_owned());
        }
    }

    /// The text of the next event of `/generate`. Panics at the end of the stream.
    pub fn next_text(&mut self) -> String {
        let event = self.event().expect("the stream goes on");
        let event: Value = serde_json::from_str(&event).expect("events hold JSON");
        let text = event["text"].as_str();
        text.expect("an event has a text").to_owned()
    }

    /// The texts of all events of `/generate`, and the final report. Panics if the stream is malformed.
    pub fn texts(mut self) -> (Vec<String>, Value) {
        assert_eq!(self.status, 200);
        let mut texts = Vec::new();
        loop {
            let event = self.event().expect("the report comes before the end");
            let event: Value = serde_json::from_str(&event).expect("events hold JSON");
            if event.get("finish_reason").is_some() {
                assert_eq!(event["text"], "", "the report adds no text");
                assert_eq!(self.event().as_deref(), Some("[DONE]"));
                assert_eq!(self.event(), None, "nothing follows [DONE]");
                return (texts, event);
            }
            let text = event["text"].as_str().expect("an event has a text");
            assert!(!text.is_empty(), "an event has text");
            texts.push(text.to_owned());
        }
    }
}

fn headers_of(response: &ureq::http::Response<ureq::Body>) -> Vec<(String, String)> {
    let text = |value: &ureq::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
    let headers = response.headers().iter();
    headers
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

/// Sends raw `bytes` to `address`, then shuts down the sending side if `finish`. Returns everything received
/// until the server closes the connection or is silent for `silence`.
pub fn raw_exchange(address: &str, bytes: &[u8], finish: bool, silence: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream
        .set_read_timeout(Some(silence))
        .expect("a time limit can be set");
    // The server may close the connection before it reads everything.
    let _ = stream.write_all(bytes);
    if finish {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
            // With a timeout, std does not retry an interrupted read.
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            _ => return received,
        }
    }
}

/// Checks the output of a test plugin that makes invalid calls: a line `NAME: RESULT` for each of `expected`, in
/// order, whose result begins with the expected text.
pub fn check_results(output: &str, expected: &[(&str, &str)]) {
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{output}");
    for (line, (name, expected)) in lines.into_iter().zip(expected) {
        let result = line
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(": "));
        let result = result.unwrap_or_else(|| panic!("{name} is not in {line}"));
        let result = result.trim_start_matches("Error::");
        assert!(result.starts_with(expected), "{line}");
    }
}
