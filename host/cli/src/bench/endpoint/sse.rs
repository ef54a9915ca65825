//! Server-sent events, read from a stream that may be cut anywhere.

/// Most bytes of an event, so that no server fills the client's memory.
const MOST: usize = 1 << 20;

/// Reads events. (<https://html.spec.whatwg.org/multipage/server-sent-events.html>, whose single carriage
/// returns as ends of lines no server sends.)
#[derive(Default)]
pub(super) struct Events {
    /// Of a line whose end is yet to come.
    line: Vec<u8>,
    /// Of an event whose end is yet to come.
    data: Option<String>,
}

/// An event is longer than any that is expected.
#[derive(Debug)]
pub(super) struct TooLong;

impl Events {
    /// Takes what came; returns the data of the events that end in it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut ended = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let data = self.data.as_ref().map_or(0, String::len);
            if data + self.line.len() + piece.len() > MOST {
                return Err(TooLong);
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                ended.extend(self.line_ended(&line));
            }
        }
        Ok(ended)
    }

    /// Takes a whole line; returns the event's data where it is the empty one at its end.
    fn line_ended(&mut self, line: &[u8]) -> Option<String> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return self.data.take();
        }
        // Comments and other fields mean nothing here.
        let value = line.strip_prefix(b"data:")?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let value = String::from_utf8_lossy(value);
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
    fn events_are_the_same_wherever_the_stream_is_cut() {
        let expected = ["{\"a\":\"ä\"}", "two\n lines", "[DONE]"];
        for length in 1..=STREAM.len() {
            let mut events = Events::default();
            let mut read = Vec::new();
            for piece in STREAM.as_bytes().chunks(length) {
                read.extend(events.push(piece).expect("short ones"));
            }
            assert_eq!(read, expected, "in pieces of {length}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        for piece in [&b"data: 0123456789abcdef\n"[..], b"0123456789abcdef"] {
            let mut events = Events::default();
            let all = MOST / 16;
            let pushed = (0..=all).find(|_| events.push(piece).is_err());
            assert!(pushed.is_some(), "{} bytes", all * 16);
        }
    }
}
