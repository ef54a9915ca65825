//! What one exchange is known by and how it went: its id, and a body that tells when it ended.

use crate::traffic::{Open, Traffic};
use bytes::Bytes;
use corral_runtime::{Body, CallError, PolledFrame};
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method, Response};
use http_body::{Body as _, SizeHint};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

/// The header that names an exchange, in the plugin's request and in the answer.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Makes ids that differ between requests and between runs of the process.
#[derive(Debug)]
pub(crate) struct RequestIds {
    process: u32,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds {
            // The standard library's hash keys are the randomness at hand; the upper half does.
            process: (RandomState::new().hash_one(std::process::id()) >> 32) as u32,
            next: AtomicU64::new(0),
        }
    }
}

impl RequestIds {
    pub(crate) fn next(&self) -> RequestId {
        RequestId {
            process: self.process,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Names one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    process: u32,
    number: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.process, self.number)
    }
}

impl RequestId {
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).unwrap_or(HeaderValue::from_static("unnamed"))
    }
}

/// A request while it is answered: counted, and written to the log at its end.
pub(crate) struct Exchange {
    open: Open,
    id: RequestId,
    method: Method,
    path: String,
    key: Option<Arc<str>>,
    started: Instant,
    status: u16,
    bytes: u64,
    /// Bytes that the answer's head announced: hyper drops the body once it has sent them.
    announced: Option<u64>,
    complete: bool,
}

impl Exchange {
    pub(crate) fn begin(
        traffic: &Arc<Traffic>,
        id: RequestId,
        method: &Method,
        path: &str,
    ) -> Self {
        Exchange {
            open: traffic.request(),
            id,
            method: method.clone(),
            path: path.to_owned(),
            key: None,
            started: Instant::now(),
            status: 0,
            bytes: 0,
            announced: None,
            complete: false,
        }
    }

    /// The answer's head is known, and the name of the key that was used; its body goes on carrying
    /// this exchange.
    pub(crate) fn answer(
        mut self,
        response: Response<Body>,
        key: Option<Arc<str>>,
    ) -> Response<Observed> {
        self.key = key;
        self.open.traffic().answered(response.status());
        self.status = response.status().as_u16();
        self.announced = response
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        // hyper doesn't poll a body that is known to be empty, or that no one may see (HEAD).
        self.complete = response.body().is_end_stream()
            || self.announced == Some(0)
            || self.method == Method::HEAD;
        let id = self.id.header();
        let mut response = response.map(|body| Observed {
            body,
            exchange: Some(self),
        });
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.complete {
            self.open.traffic().cut();
        }
        tracing::info!(
            target: "corral::access",
            id = %self.id,
            method = %self.method,
            path = self.path,
            key = self.key.as_deref(),
            status = self.status,
            bytes = self.bytes,
            ms = self.started.elapsed().as_millis() as u64,
            complete = self.complete,
        );
    }
}

/// A body that hyper polls through to the plugin's, and that notes how the exchange ended.
pub(crate) struct Observed {
    body: Body,
    /// None for answers that nobody counts.
    exchange: Option<Exchange>,
}

impl From<Body> for Observed {
    fn from(body: Body) -> Self {
        Observed {
            body,
            exchange: None,
        }
    }
}

impl http_body::Body for Observed {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ends_here = self.body.is_end_stream();
        if let Some(exchange) = &mut self.exchange {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    exchange.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                    exchange.complete = ends_here
                        || exchange
                            .announced
                            .is_some_and(|length| exchange.bytes >= length);
                }
                Poll::Ready(Some(Err(failure))) => {
                    tracing::warn!(id = %exchange.id, path = exchange.path, %failure, "answer cut off");
                }
                Poll::Ready(None) => exchange.complete = true,
                Poll::Pending => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let ids = RequestIds::default();
        let (one, two) = (ids.next(), ids.next());
        assert_ne!(one.to_string(), two.to_string());
        assert_eq!(one.header(), one.to_string());
        assert_ne!(
            RequestIds::default().process,
            RequestIds::default().process,
            "two processes (equal once in four thousand million runs)"
        );
    }

    #[test]
    fn an_exchange_that_is_dropped_early_counts_as_cut() {
        let traffic = Arc::new(Traffic::default());
        let ids = RequestIds::default();
        let begin = || Exchange::begin(&traffic, ids.next(), &Method::GET, "/x");
        let cut = || {
            let mut families = crate::metrics_text::Families::default();
            traffic.write(&mut families);
            families.text().contains("\ncorral_http_cut_total 1\n")
        };
        drop(begin().answer(Response::new(Body::empty()), None));
        assert!(!cut(), "an empty answer is complete as it stands");
        drop(begin().answer(Response::new(Body::from("not read")), None));
        assert!(cut());
    }
}
