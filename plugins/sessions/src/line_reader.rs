//! Reads a request's body line by line; each line is a command.
//!
//! *Invariant*: it reads no further once the bytes without a line break exceed the limit, so a client cannot make the
//! buffer grow. It does not parse the lines.

use corral_sdk::bindings::wasip3::wit_bindgen::{StreamReader, StreamResult};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// Splits a body into lines.
pub(crate) struct LineReader {
    body: StreamReader<u8>,
    /// Bytes of the body after the last line that was taken.
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that have no line break.
    searched: usize,
    limit: usize,
    /// The body has ended. The host traps further reads.
    has_ended: bool,
}

/// Why there is no further line.
pub(crate) enum End {
    /// The body has ended. Its last line may lack its end.
    Body(Vec<u8>),
    /// The client reads no further replies.
    Client,
    /// The line is longer than the limit.
    TooLong,
}

impl LineReader {
    pub(crate) fn new(body: StreamReader<u8>, limit: usize) -> Self {
        LineReader {
            body,
            buffer: Vec::new(),
            searched: 0,
            limit,
            has_ended: false,
        }
    }

    /// Reads the next line, without its end.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, End> {
        loop {
            let unsearched = &self.buffer[self.searched..];
            if let Some(length) = unsearched.iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + length + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.pop();
                return Ok(line);
            }
            self.searched = self.buffer.len();
            if self.searched > self.limit {
                return Err(End::TooLong);
            }
            if self.has_ended {
                self.searched = 0;
                return Err(End::Body(std::mem::take(&mut self.buffer)));
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.reserve(READ_BYTES);
            let (status, read) = self.body.read(buffer).await;
            self.buffer = read;
            self.has_ended = !matches!(status, StreamResult::Complete(_));
        }
    }
}
