//! Server-sent events.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;
use wasip3::wit_bindgen::StreamWriter;

use crate::Error;

/// Where the events of a [`Response::events`](crate::Response::events) go.
///
/// Each call waits until the client's connection has taken the event. Once the client is gone, each is
/// [`Error::Cancelled`]: leaving then drops the generation, which cancels it.
pub struct Events {
    to: Writer,
    gone: bool,
}

enum Writer {
    Client(StreamWriter<u8>),
    /// For tests: what was written, and how many events are taken before the client is gone.
    Page(Rc<RefCell<Vec<u8>>>, usize),
}

impl Events {
    pub(super) fn to_client(writer: StreamWriter<u8>) -> Self {
        Events {
            to: Writer::Client(writer),
            gone: false,
        }
    }

    pub(super) fn to_page(page: &Rc<RefCell<Vec<u8>>>, most: usize) -> Self {
        Events {
            to: Writer::Page(Rc::clone(page), most),
            gone: false,
        }
    }

    /// Sends an event with this data, whatever lines it has.
    pub async fn data(&mut self, data: &str) -> Result<(), Error> {
        self.write(framed(None, data)).await
    }

    /// Sends an event with a value as JSON.
    pub async fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::Failed(format!("an event has no JSON form: {error}")))?;
        self.data(&text).await
    }

    /// Sends an event with a name, which is one line.
    pub async fn named(&mut self, name: &str, data: &str) -> Result<(), Error> {
        self.write(framed(Some(name), data)).await
    }

    /// Whether the client went away.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    async fn write(&mut self, event: String) -> Result<(), Error> {
        self.raw(event.into_bytes()).await
    }

    /// Sends bytes that are events, or nothing.
    pub(super) async fn raw(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        if !self.gone && !bytes.is_empty() {
            self.gone = match &mut self.to {
                Writer::Client(writer) => !writer.write_all(bytes).await.is_empty(),
                Writer::Page(_, 0) => true,
                Writer::Page(page, most) => {
                    *most -= 1;
                    page.borrow_mut().extend(bytes);
                    false
                }
            };
        }
        if self.gone {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// The event that ends a stream in which something failed: nothing follows it.
    pub(super) async fn error(&mut self, error: &Error) {
        // Whoever is gone need not know.
        let _ = self.named("error", &error.to_json()).await;
    }
}

/// An event in the format of the HTML standard.
fn framed(name: Option<&str>, data: &str) -> String {
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
    fn every_line_is_data() {
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
            assert_eq!(framed(None, data), event);
        }
        assert_eq!(framed(Some("er\nror"), "x"), "event: error\ndata: x\n\n");
    }
}
