//! Lines to and from the host, over one HTTP request of the component.
//!
//! *Invariant*: sending also reads, because a host that cannot send its replies reads no further commands. While the component
//! waits, it sends empty lines, so that the host does not end the session. It does not parse the lines.

use session_protocol::Error;
use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::io::poll::poll;
use wasip2::io::streams::StreamError;

use crate::connect::{Streams, open};

/// How often an empty line shows the host that this component waits, in nanoseconds.
const KEEP_ALIVE: u64 = 10 * 1_000_000_000;
/// Longest line of the host, in bytes. A host has less memory for one.
const MAX_REPLY: usize = 256 << 20;
/// Bytes that are read at once.
const READ_BYTES: u64 = 64 << 10;

pub(crate) struct Connection {
    streams: Streams,
    /// Bytes after the last line that was taken.
    received: Vec<u8>,
}

impl Connection {
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Connection {
            streams: open()?,
            received: Vec::new(),
        })
    }

    /// Sends a line. Reads meanwhile: a host that cannot send its replies reads no further commands.
    pub(crate) fn send(&mut self, line: &[u8]) -> Result<(), Error> {
        let mut rest = line;
        while !rest.is_empty() {
            let room = self
                .streams
                .output
                .check_write()
                .map_err(|error| ended(&error))?;
            if room == 0 {
                let writable = self.streams.output.subscribe();
                let readable = self.streams.input.subscribe();
                poll(&[&writable, &readable]);
                self.read_ready()?;
                continue;
            }
            let length = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, later) = rest.split_at(length);
            self.streams
                .output
                .write(now)
                .map_err(|error| ended(&error))?;
            rest = later;
        }
        self.streams.output.flush().map_err(|error| ended(&error))
    }

    /// Waits for the next line.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>, Error> {
        let mut searched = 0;
        loop {
            if let Some(length) = self.received[searched..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let rest = self.received.split_off(searched + length + 1);
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.received.len();
            if searched > MAX_REPLY {
                return Err(Error::Failed {
                    detail: format!("the Corral host sent a line of more than {MAX_REPLY} bytes"),
                });
            }
            let readable = self.streams.input.subscribe();
            let silent = subscribe_duration(KEEP_ALIVE);
            if poll(&[&readable, &silent]).contains(&0) {
                self.read_ready()?;
            } else {
                drop((readable, silent));
                self.send(b"\n")?;
            }
        }
    }

    /// Reads what is there.
    fn read_ready(&mut self) -> Result<(), Error> {
        let piece = self.streams.input.read(READ_BYTES);
        self.received.extend(piece.map_err(|error| ended(&error))?);
        Ok(())
    }
}

fn ended(error: &StreamError) -> Error {
    let why = match error {
        StreamError::Closed => "the host closed it: it reached the deployment's time limit, was idle for too long, or the host stops".to_owned(),
        StreamError::LastOperationFailed(error) => error.to_debug_string(),
    };
    Error::Failed {
        detail: format!("the session with the Corral host has ended; {why}"),
    }
}
