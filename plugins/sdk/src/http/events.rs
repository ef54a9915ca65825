//! Server-sent events.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;
use wasip3::wit_bindgen::StreamWriter;

use crate::Error;

/// Writes the events of a [`Response::events`](crate::Response::events) and the lines of a
/// [`Response::json_lines`](crate::Response::json_lines).
///
/// Each call waits until the client's connection has taken the event. After the client disconnects,
/// each call is [`Error::Cancelled`]; returning it drops the generation, which cancels it.
pub struct EventWriter {
    to: Writer,
    disconnected: bool,
}

enum Writer {
    Client(StreamWriter<u8>),
    /// A buffer for tests, and the number of events it takes before the client disconnects.
    Buffer(Rc<RefCell<Vec<u8>>>, usize),
}

impl EventWriter {
    pub(super) fn to_client(writer: StreamWriter<u8>) -> Self {
        EventWriter {
            to: Writer::Client(writer),
            disconnected: false,
        }
    }

    pub(super) fn to_buffer(buffer: &Rc<RefCell<Vec<u8>>>, limit: usize) -> Self {
        EventWriter {
            to: Writer::Buffer(Rc::clone(buffer), limit),
            disconnected: false,
        }
    }

    /// Sends an event with this data, which may have several lines.
    pub async fn data(&mut self, data: &str) -> Result<(), Error> {
        self.write(encode(None, data)).await
    }

    /// Sends an event for each of `all`, in one write.
    pub async fn data_events(&mut self, all: &[String]) -> Result<(), Error> {
        let events: String = all.iter().map(|data| encode(None, data)).collect();
        self.write(events).await
    }

    /// Sends an event with a value as JSON.
    pub async fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::Failed(format!("an event has no JSON form: {error}")))?;
        self.data(&text).await
    }

    /// Sends an event with a name of one line.
    pub async fn named(&mut self, name: &str, data: &str) -> Result<(), Error> {
        self.write(encode(Some(name), data)).await
    }

    /// Sends a value as a line of JSON, without an event around it.
    pub async fn json_line(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::Failed(format!("a line has no JSON form: {error}")))?;
        self.write(text + "\n").await
    }

    /// Sends bytes as they are, for [`Response::with_stream`](crate::Response::with_stream).
    pub async fn bytes(&mut self, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.write_bytes(bytes.into()).await
    }

    async fn write(&mut self, event: String) -> Result<(), Error> {
        self.write_bytes(event.into_bytes()).await
    }

    /// Sends encoded events.
    pub(super) async fn write_bytes(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        if !self.disconnected && !bytes.is_empty() {
            self.disconnected = match &mut self.to {
                Writer::Client(writer) => !writer.write_all(bytes).await.is_empty(),
                Writer::Buffer(_, 0) => true,
                Writer::Buffer(buffer, limit) => {
                    *limit -= 1;
                    buffer.borrow_mut().extend(bytes);
                    false
                }
            };
        }
        if self.disconnected {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// Sends the event that ends a stream after an error.
    pub(super) async fn error(&mut self, error: &Error) {
        // A disconnected client does not need it.
        let _ = self.named("error", &error.to_json()).await;
    }

    /// Sends the line that ends lines of JSON after an error.
    pub(super) async fn error_line(&mut self, error: &Error) {
        // A disconnected client does not need it.
        let _ = self
            .write(format!("{{\"error\":{}}}\n", error.to_json()))
            .await;
    }
}

/// Encodes an event as the HTML standard specifies.
fn encode(name: Option<&str>, data: &str) -> String {
    let mut event = String::with_capacity(data.len() + 16);
    if let Some(name) = name {
        event += "event: ";
        event.extend(name.chars().filter(|c| !matches!(c, '\n' | '\r')));
        event.push('\n');
    }
    let data = data.replace("\r\n", "\n");
    for line in data.split(['\n', '\r']) {
        event += "data: ";
        event += line;
        event.push('\n');
    }
    event.push('\n');
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_becomes_data() {
        for (data, event) in [
            ("", "data: \n\n"),
            ("a", "data: a\n\n"),
            (
                "a\nb\r\nc\rd\n",
                "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n",
            ),
            ("data: x\n\n", "data: data: x\ndata: \ndata: \n\n"),
            ("\u{2028}", "data: \u{2028}\n\n"),
        ] {
            assert_eq!(encode(None, data), event);
        }
        assert_eq!(encode(Some("er\nror"), "x"), "event: error\ndata: x\n\n");
    }
}
