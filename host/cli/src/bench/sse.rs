//! Reads server-sent events from a stream that arrives in pieces of any size.
//!
//! It follows <https://html.spec.whatwg.org/multipage/server-sent-events.html>, but for single carriage returns as
//! ends of lines, which no server sends. It returns the data of events and drops comments and other fields.

/// Most bytes of an event: bounds the memory that a server can make the client use.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// The state of a reader between two pieces.
#[derive(Default)]
pub struct EventReader {
    /// An unfinished line.
    line: Vec<u8>,
    /// The data of an unfinished event.
    data: Option<String>,
}

/// An event exceeds the largest accepted size.
#[derive(Debug)]
pub struct EventTooLong;

impl EventReader {
    /// Takes a piece; returns the data of each event that ends in it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, EventTooLong> {
        let mut events = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let data = self.data.as_ref().map_or(0, String::len);
            if data + self.line.len() + piece.len() > MAX_EVENT_BYTES {
                return Err(EventTooLong);
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take_line(&line));
            }
        }
        Ok(events)
    }

    /// Takes a whole line; an empty one ends the event and returns its data.
    fn take_line(&mut self, line: &[u8]) -> Option<String> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return self.data.take();
        }
        let value = line.strip_prefix(b"data:")?;
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(&value);
            }
            None => self.data = Some(value.into_owned()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\ndata: {\"a\":\"ä\"}\n\nevent: x\r\ndata:two\r\ndata:  lines\r\n\r\n\
                          data: [DONE]\n\ndata: no end";

    #[test]
    fn events_do_not_depend_on_piece_size() {
        let expected = ["{\"a\":\"ä\"}", "two\n lines", "[DONE]"];
        for length in 1..=STREAM.len() {
            let mut reader = EventReader::default();
            let mut events = Vec::new();
            for piece in STREAM.as_bytes().chunks(length) {
                events.extend(reader.push(piece).expect("short events"));
            }
            assert_eq!(events, expected, "in pieces of {length}");
        }
    }

    #[test]
    fn endless_event_is_refused() {
        for piece in [&b"data: 0123456789abcdef\n"[..], b"0123456789abcdef"] {
            let mut reader = EventReader::default();
            let pieces = MAX_EVENT_BYTES / 16;
            let refused = (0..=pieces).find(|_| reader.push(piece).is_err());
            assert!(refused.is_some(), "{} bytes", pieces * 16);
        }
    }
}
