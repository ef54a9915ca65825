//! Events of a generation's text that the plugin does not look at.

use serde_json::Value;

use super::Events;
use crate::raw::inference::Framing;
use crate::{Error, Generation, Outcome};

/// What stands for the text in a model of an event: nobody writes that, and if somebody did, there is another.
const TEXTS: [&str; 2] = ["\u{10ffff}text\u{10ffff}", "\u{10fffe}text\u{10fffe}"];
/// Most bytes of a frame that the host takes.
const MOST: usize = 64 << 10;

/// What the event of each piece of text looks like, for [`Response::forward`](crate::Response::forward).
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    first: Vec<u8>,
    before: String,
    after: String,
}

impl Frame {
    /// An event whose data is JSON: `event` says what it is for a text, and puts the text into one place of it as it
    /// stands.
    ///
    /// # Panics
    ///
    /// Where it puts it elsewhere, changes it or leaves it out: that is a mistake in the plugin.
    ///
    /// ```
    /// use corral_sdk::http::Frame;
    ///
    /// Frame::json(|text| serde_json::json!({"delta": {"content": text}}));
    /// ```
    pub fn json(event: impl Fn(&str) -> Value) -> Self {
        for text in TEXTS {
            let place = Value::from(text).to_string();
            let event = event(text).to_string();
            if let [before, after] = event.split(&place).collect::<Vec<_>>()[..] {
                return Frame {
                    first: Vec::new(),
                    before: format!("data: {before}"),
                    after: format!("{after}\n\n"),
                };
            }
        }
        panic!("the text is to stand in one place of the event, and unchanged");
    }

    /// With one event more before all of them, whose data is JSON.
    pub fn first(mut self, event: &Value) -> Self {
        self.first.extend(format!("data: {event}\n\n").into_bytes());
        self
    }

    /// The event of a piece.
    fn of(&self, text: &str) -> Vec<u8> {
        let text = Value::from(text);
        format!("{}{text}{}", self.before, self.after).into_bytes()
    }

    /// As the host takes it, where this piece has been read already; nothing if that is too much for it.
    pub(super) fn framing(&self, read: &str) -> Option<Framing> {
        let mut first = self.first.clone();
        if !read.is_empty() {
            first.extend(self.of(read));
        }
        let fits = first.len() + self.before.len() + self.after.len() <= MOST;
        fits.then(|| Framing {
            first,
            before: self.before.clone().into_bytes(),
            after: self.after.clone().into_bytes(),
            json: true,
        })
    }
}

/// A generation whose text goes to the client.
pub(super) struct Forward {
    pub(super) generation: Generation,
    pub(super) frame: Frame,
    pub(super) end: End,
}

/// What is sent after the text.
pub(super) type End = Box<
    dyn for<'a> FnOnce(
        Result<Outcome, Error>,
        &'a mut Events,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>,
>;

impl Forward {
    /// The same without the host's help.
    pub(super) async fn write(mut self, mut events: Events) {
        if events.raw(self.frame.first.clone()).await.is_err() {
            return;
        }
        while let Some(chunk) = self.generation.next().await {
            let event = match chunk.text.is_empty() {
                true => Vec::new(),
                false => self.frame.of(&chunk.text),
            };
            if events.raw(event).await.is_err() {
                return;
            }
        }
        let outcome = self.generation.outcome().await;
        ended(self.end, outcome, events).await;
    }
}

/// Sends what comes after the text.
pub(super) async fn ended(end: End, outcome: Result<Outcome, Error>, mut events: Events) {
    if let Err(error) = end(outcome, &mut events).await {
        events.error(&error).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_has_the_text_in_its_place() {
        let frame = Frame::json(|text| json!({"a": 1, "text": text, "z": null}));
        assert_eq!(
            frame.of("\"q\"\n"),
            b"data: {\"a\":1,\"text\":\"\\\"q\\\"\\n\",\"z\":null}\n\n"
        );
        let frame = frame.first(&json!([2]));
        let first = String::from_utf8(frame.framing("x").unwrap().first).unwrap();
        assert_eq!(
            first,
            "data: [2]\n\ndata: {\"a\":1,\"text\":\"x\",\"z\":null}\n\n"
        );
    }

    #[test]
    fn what_a_client_wrote_is_not_taken_for_the_place() {
        let frame = Frame::json(|text| json!({"name": TEXTS[0], "text": text}));
        let event = String::from_utf8(frame.of("x")).unwrap();
        assert!(event.ends_with(",\"text\":\"x\"}\n\n"), "{event}");
        assert_eq!(frame.framing(&"x".repeat(MOST)), None, "too long");
    }

    #[test]
    #[should_panic = "in one place"]
    fn a_text_in_two_places_is_a_mistake() {
        Frame::json(|text| json!([text, text]));
    }
}
