//! Ids of requests.

use http::{HeaderName, HeaderValue};
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Header with the request id, in the plugin's request and in the answer.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes of the longest id.
const MAX_TEXT_BYTES: usize = 8 + 1 + 20;

/// Generates ids that differ between requests and between runs of the process.
#[derive(Debug)]
pub(crate) struct RequestIdGenerator {
    process: u32,
    next: AtomicU64,
}

impl Default for RequestIdGenerator {
    fn default() -> Self {
        RequestIdGenerator {
            // The keys of the standard library's hasher are random; the upper half suffices.
            process: (RandomState::new().hash_one(std::process::id()) >> 32) as u32,
            next: AtomicU64::new(0),
        }
    }
}

impl RequestIdGenerator {
    pub(crate) fn next(&self) -> HttpRequestId {
        HttpRequestId {
            process: self.process,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Id of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HttpRequestId {
    process: u32,
    number: u64,
}

impl fmt::Display for HttpRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.process, self.number)
    }
}

impl FromStr for HttpRequestId {
    type Err = ();

    /// Reads an id as it is displayed.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (process, number) = text.split_once('-').ok_or(())?;
        let id = HttpRequestId {
            process: u32::from_str_radix(process, 16).map_err(|_| ())?,
            number: number.parse().map_err(|_| ())?,
        };
        // Only one text is an id.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(())
        }
    }
}

impl HttpRequestId {
    /// The id as it is displayed.
    pub(crate) fn text(&self) -> Arc<str> {
        let mut text = String::with_capacity(MAX_TEXT_BYTES);
        // Writing to a string does not fail.
        let _ = write!(text, "{self}");
        text.into()
    }

    /// The header with the id that is displayed as `text`.
    pub(crate) fn header(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("unnamed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_between_requests_and_processes() {
        let ids = RequestIdGenerator::default();
        let (one, two) = (ids.next(), ids.next());
        assert_ne!(one.to_string(), two.to_string());
        assert_eq!(*one.text(), one.to_string());
        assert_eq!(HttpRequestId::header(&one.text()), one.to_string());
        assert_eq!(two.to_string().parse(), Ok(two));
        assert_ne!(
            RequestIdGenerator::default().process,
            RequestIdGenerator::default().process,
            "two processes; equal once in 2^32 runs"
        );
    }
}
