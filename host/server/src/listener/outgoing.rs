//! An answer's body as hyper sees it.
//!
//! It keeps the connection's books, and knows how to end: a stream of events that still runs when the
//! server's time to end is over gets a last event that says so, and then ends whole. Other answers
//! are cut off, so that no client takes half of one for all of it.

use super::streams::{Outbox, Running, outbox};
use crate::access::Observed;
use crate::shutdown::{Phase, reached};
use bytes::Bytes;
use corral_runtime::{CallError, PolledFrame};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// The last event of a stream that the server has to end: an extension of the response. Only for
/// bodies of the type `text/event-stream` as they stand, without a length or an encoding.
#[derive(Clone, Debug)]
pub(crate) struct Farewell(pub(crate) Bytes);

pub(super) struct Outgoing {
    /// None after the farewell.
    body: Option<Observed>,
    ending: Option<Ending>,
    outbox: Option<Arc<Outbox>>,
    failed: Failed,
    _running: Running,
}

/// How the body failed, until hyper is told. hyper drops what it has not written yet as soon as it hears of
/// that, the answer's head too, so it hears of it a poll later: in between it writes what came before, as far as the
/// connection takes it.
#[derive(Debug, Default)]
struct Failed(Option<CallError>);

/// What is needed to end a stream of events.
struct Ending {
    farewell: Bytes,
    /// The time to end has come.
    comes: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_come: bool,
    /// Between two events, where another one may follow.
    between: Between,
}

impl Outgoing {
    /// The body of `response`, which belongs to `running`.
    pub(super) fn of(
        mut response: Response<Observed>,
        mut running: Running,
        phase: &watch::Receiver<Phase>,
    ) -> Response<Self> {
        running.answered();
        let farewell = response.extensions_mut().remove::<Farewell>();
        let ending = farewell.map(|Farewell(farewell)| {
            let mut phase = phase.clone();
            Ending {
                farewell,
                comes: Box::pin(async move { reached(&mut phase, Phase::Ending).await }),
                has_come: false,
                between: Between::default(),
            }
        });
        response.map(|body| Outgoing {
            body: Some(body),
            ending,
            outbox: outbox(),
            failed: Failed::default(),
            _running: running,
        })
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut failed = std::mem::take(&mut self.failed);
        let polled = failed.poll(cx, |cx| self.poll_body(cx));
        self.failed = failed;
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.failed.0.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            // With a farewell it may become longer than its own hint.
            Some(body) if self.ending.is_none() => body.size_hint(),
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Outgoing {
    /// What comes next, with nothing put off.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let this = self;
        if let Some(outbox) = &this.outbox {
            outbox.set_full(false);
        }
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if let Some(ending) = &mut this.ending
            && ending.between.events()
            && ending.has_come(cx)
        {
            let farewell = std::mem::take(&mut ending.farewell);
            this.body = None;
            return Poll::Ready(Some(Ok(Frame::data(farewell))));
        }
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            if let Some(outbox) = &this.outbox {
                outbox.set_full(true);
            }
            if let Some(ending) = &mut this.ending {
                ending.between.passed(data);
            }
        }
        polled
    }
}

impl Failed {
    /// What `body` gives, or has given before.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        body: impl FnOnce(&mut Context<'_>) -> PolledFrame,
    ) -> PolledFrame {
        if let Some(failure) = self.0.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match body(cx) {
            Poll::Ready(Some(Err(failure))) => {
                self.0 = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    }
}

impl Ending {
    fn has_come(&mut self, cx: &mut Context<'_>) -> bool {
        self.has_come = self.has_come || self.comes.as_mut().poll(cx).is_ready();
        self.has_come
    }
}

/// Whether a stream of events stands between two of them: at its beginning, or after an empty line.
#[derive(Debug)]
struct Between {
    /// Lines end with LF, CR or both (HTML, 9.2.5); only LF and CR LF are read here, since a CR may be
    /// the first half of CR LF.
    line_is_empty: bool,
    events: bool,
}

impl Default for Between {
    fn default() -> Self {
        Between {
            line_is_empty: true,
            events: true,
        }
    }
}

impl Between {
    fn events(&self) -> bool {
        self.events
    }

    fn passed(&mut self, data: &[u8]) {
        for byte in data {
            match byte {
                b'\n' => {
                    self.events = self.line_is_empty;
                    self.line_is_empty = true;
                }
                b'\r' => self.events = false,
                _ => {
                    self.events = false;
                    self.line_is_empty = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::streams::Activity;
    use http_body_util::BodyExt;
    use std::future::poll_fn;

    fn outgoing(body: &'static str, phase: Phase) -> (Outgoing, watch::Sender<Phase>) {
        let (sender, receiver) = watch::channel(phase);
        let body = Observed::from(corral_runtime::Body::from(body));
        let mut response = Response::new(body);
        let farewell = Farewell(Bytes::from_static(b"data: bye\n\n"));
        response.extensions_mut().insert(farewell);
        let running = Activity::new().begin();
        (
            Outgoing::of(response, running, &receiver).into_body(),
            sender,
        )
    }

    #[test]
    fn events_end_with_an_empty_line() {
        for (text, expected) in [
            ("", true),
            ("data: x\n\n", true),
            ("data: x\r\n\r\n", true),
            ("data: x\n\n\n\n", true),
            ("data: x\n", false),
            ("data: x", false),
            ("data: x\n\ndata", false),
            ("data: x\n\n\r", false),
            (": a comment\n", false),
        ] {
            for piece in [1, 2, 100] {
                let mut between = Between::default();
                for part in text.as_bytes().chunks(piece) {
                    between.passed(part);
                }
                assert_eq!(between.events(), expected, "{text:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_farewell_only_between_events() {
        let (body, _phase) = outgoing("data: x\n\n", Phase::Ending);
        let all = body.collect().await.expect("no error").to_bytes();
        assert_eq!(all, "data: bye\n\n", "nothing had been sent");
        let (mut body, _phase) = outgoing("data: x", Phase::Draining);
        let frame = body.frame().await.expect("data").expect("no error");
        assert_eq!(frame.data_ref().expect("data"), "data: x");
        _phase.send_replace(Phase::Ending);
        assert!(body.frame().await.is_none(), "in the midst of an event");
    }

    #[tokio::test]
    async fn what_came_before_a_failure_is_written_before_hyper_hears_of_it() {
        let mut failed = Failed::default();
        let mut polls = Vec::new();
        let error = poll_fn(|cx| {
            let polled = failed.poll(cx, |_| Poll::Ready(Some(Err(CallError::Internal))));
            polls.push(polled.is_pending());
            polled
        });
        let failure = error.await.expect("one").expect_err("it failed");
        assert!(matches!(failure, CallError::Internal));
        assert_eq!(polls, [true, false]);
    }

    #[tokio::test]
    async fn one_that_ends_by_itself_gets_none() {
        let (body, _phase) = outgoing("data: x\n\n", Phase::Draining);
        let all = body.collect().await.expect("no error").to_bytes();
        assert_eq!(all, "data: x\n\n");
    }

    #[tokio::test]
    async fn one_that_waits_is_woken_by_the_end() {
        let (mut body, phase) = outgoing("", Phase::Serving);
        let ending = body.ending.as_mut().expect("it has one");
        let woken = poll_fn(|cx| match ending.has_come(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let end = async {
            tokio::task::yield_now().await;
            phase.send_replace(Phase::Ending);
        };
        tokio::join!(woken, end);
    }
}
