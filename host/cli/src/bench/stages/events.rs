//! Server-sent events as they come, in whatever pieces.

/// What ends a stream.
const DONE: &str = "[DONE]";
/// What a line with data begins with.
const DATA: &str = "data: ";

/// The events of one stream, of which only the last two are kept.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A line that has not ended yet.
    line: Vec<u8>,
    last: String,
    before: String,
}

impl Events {
    /// Takes in what came.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.take_line();
            }
        }
    }

    fn take_line(&mut self) {
        if let Some(data) = self.line.strip_prefix(DATA.as_bytes()) {
            std::mem::swap(&mut self.before, &mut self.last);
            self.last.clear();
            self.last.push_str(String::from_utf8_lossy(data).trim_end());
        }
        self.line.clear();
    }

    /// The data of the last event, where the stream was ended as it should be.
    pub(super) fn last_before_done(&self) -> Option<&str> {
        (self.last == DONE).then_some(self.before.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Events;

    #[test]
    fn whatever_pieces_a_stream_comes_in_its_last_event_is_found() {
        let stream = b": hello\n\ndata: {\"a\":1}\r\n\r\ndata: {\"usage\":2}\n\ndata: [DONE]\n\n";
        for size in [1, 2, 7, 1000] {
            let mut events = Events::default();
            stream.chunks(size).for_each(|piece| events.read(piece));
            assert_eq!(events.last_before_done(), Some("{\"usage\":2}"));
        }
        let mut cut = Events::default();
        cut.read(&stream[..stream.len() - 2]);
        assert_eq!(cut.last_before_done(), None, "its last line has not ended");
    }
}
