//! Events of a generation's text that the host encodes without running the plugin.

use serde_json::Value;

use super::EventWriter;
use crate::bindings::inference_async::Framing;
use crate::{Error, Generation, Outcome};

/// Stands for the text in a sample event. The second one is used if an event contains the first.
const SAMPLE_TEXTS: [&str; 2] = ["\u{10ffff}text\u{10ffff}", "\u{10fffe}text\u{10fffe}"];
/// Largest framing that the host accepts, in bytes.
const FRAMING_LIMIT: usize = 64 << 10;

/// The format of the event for each chunk of text, for
/// [`Response::text_events`](crate::Response::text_events).
#[derive(Debug, Clone, PartialEq)]
pub struct EventFormat {
    first: Vec<u8>,
    before: String,
    after: String,
}

impl EventFormat {
    /// An event whose data is JSON. `event` returns the data for a text and must contain the text
    /// once, unchanged.
    ///
    /// # Panics
    ///
    /// If `event` contains the text elsewhere, changes it or omits it: a mistake in the plugin.
    ///
    /// ```
    /// use corral_sdk::http::EventFormat;
    ///
    /// EventFormat::json(|text| serde_json::json!({"delta": {"content": text}}));
    /// ```
    pub fn json(event: impl Fn(&str) -> Value) -> Self {
        for text in SAMPLE_TEXTS {
            let sample = Value::from(text).to_string();
            let event = event(text).to_string();
            if let [before, after] = event.split(&sample).collect::<Vec<_>>()[..] {
                return EventFormat {
                    first: Vec::new(),
                    before: format!("data: {before}"),
                    after: format!("{after}\n\n"),
                };
            }
        }
        panic!("the event does not contain the text once, unchanged");
    }

    /// Sends an event with this JSON before all others.
    pub fn with_first(mut self, event: &Value) -> Self {
        self.first.extend(format!("data: {event}\n\n").into_bytes());
        self
    }

    /// The event of a chunk.
    fn event(&self, text: &str) -> Vec<u8> {
        let text = Value::from(text);
        format!("{}{text}{}", self.before, self.after).into_bytes()
    }

    /// The framing for the host, after the text `read` was read already; `None` if it is too large.
    pub(super) fn framing(&self, read: &str) -> Option<Framing> {
        let mut first = self.first.clone();
        if !read.is_empty() {
            first.extend(self.event(read));
        }
        let fits = first.len() + self.before.len() + self.after.len() <= FRAMING_LIMIT;
        fits.then(|| Framing {
            first,
            before: self.before.clone().into_bytes(),
            after: self.after.clone().into_bytes(),
            json: true,
        })
    }
}

/// A generation whose text is streamed to the client.
pub(super) struct TextEvents {
    pub(super) generation: Generation,
    pub(super) format: EventFormat,
    pub(super) end: OnEnd,
}

/// The function that writes the events after the text.
pub(super) type OnEnd = Box<
    dyn for<'a> FnOnce(
        Result<Outcome, Error>,
        &'a mut EventWriter,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>,
>;

impl TextEvents {
    /// Writes all events without the host's framing.
    pub(super) async fn write(mut self, mut events: EventWriter) {
        if events.write_bytes(self.format.first.clone()).await.is_err() {
            return;
        }
        while let Some(chunk) = self.generation.next().await {
            let event = match chunk.text.is_empty() {
                true => Vec::new(),
                false => self.format.event(&chunk.text),
            };
            if events.write_bytes(event).await.is_err() {
                return;
            }
        }
        let outcome = self.generation.outcome().await;
        finish(self.end, outcome, events).await;
    }
}

/// Writes the events after the text.
pub(super) async fn finish(end: OnEnd, outcome: Result<Outcome, Error>, mut events: EventWriter) {
    if let Err(error) = end(outcome, &mut events).await {
        events.error(&error).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn event_contains_the_text() {
        let format = EventFormat::json(|text| json!({"a": 1, "text": text, "z": null}));
        assert_eq!(
            format.event("\"q\"\n"),
            b"data: {\"a\":1,\"text\":\"\\\"q\\\"\\n\",\"z\":null}\n\n"
        );
        let format = format.with_first(&json!([2]));
        let first = String::from_utf8(format.framing("x").unwrap().first).unwrap();
        let expected = "data: [2]\n\ndata: {\"a\":1,\"text\":\"x\",\"z\":null}\n\n";
        assert_eq!(first, expected);
    }

    #[test]
    fn client_text_may_equal_the_sample_text() {
        let format = EventFormat::json(|text| json!({"name": SAMPLE_TEXTS[0], "text": text}));
        let event = String::from_utf8(format.event("x")).unwrap();
        assert!(event.ends_with(",\"text\":\"x\"}\n\n"), "{event}");
        assert_eq!(format.framing(&"x".repeat(FRAMING_LIMIT)), None, "too long");
    }

    #[test]
    #[should_panic = "once, unchanged"]
    fn event_with_two_texts_panics() {
        EventFormat::json(|text| json!([text, text]));
    }
}
