//! Chunks of responses that hyper holds for clients that do not read.
//!
//! hyper polls a body only while it holds less than the bounds in `connection.rs`. It drops a chunk once all of it is
//! written, or the connection or the stream ends. The gauge counts the chunk until then; it leaves out the fixed buffers
//! below: of TLS, and of HTTP/2 for small chunks.

use crate::http_counters::{CounterGuard, HttpCounters};
use bytes::{Buf, Bytes};
use std::sync::Arc;

/// A chunk of a response, counted until it is dropped.
#[derive(Debug)]
pub(super) struct UnsentBytes {
    bytes: Bytes,
    _counted: Option<CounterGuard>,
}

impl UnsentBytes {
    /// Without `counters` the chunk is not counted.
    pub(super) fn new(bytes: Bytes, counters: Option<&Arc<HttpCounters>>) -> Self {
        let counted = counters.map(|counters| counters.count_unsent(bytes.len()));
        UnsentBytes {
            bytes,
            _counted: counted,
        }
    }
}

impl Buf for UnsentBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
