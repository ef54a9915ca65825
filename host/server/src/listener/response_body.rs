//! The body of a response as hyper polls it.
//!
//! Tracks the activity of its connection, and ends a stream of server-sent events with a final event when
//! the grace period of a shutdown is over. Other responses are cut off, so that a client cannot mistake a
//! partial answer for a complete one.

use super::streams::{RequestGuard, SendBuffer, current_send_buffer};
use crate::request_log::LoggedBody;
use crate::shutdown::{ListenerPhase, reached};
use bytes::Bytes;
use corral_runtime::{CallError, PolledFrame};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// The event that ends an event stream at shutdown: an extension of the response. Only for bodies of type
/// `text/event-stream` without a length or an encoding.
#[derive(Clone, Debug)]
pub(crate) struct FinalEvent(pub(crate) Bytes);

pub(super) struct ResponseBody {
    /// `None` after the final event.
    body: Option<LoggedBody>,
    final_event: Option<PendingFinalEvent>,
    send_buffer: Option<Arc<SendBuffer>>,
    delayed_error: DelayedError,
    _running: RequestGuard,
}

/// Delays an error by one poll. On an error hyper drops everything that it has not written, even the
/// response's header; the pending poll in between lets it write what came before.
#[derive(Debug, Default)]
struct DelayedError(Option<CallError>);

/// Waits for the shutdown of an event stream.
struct PendingFinalEvent {
    event: Bytes,
    /// Completes when the grace period is over.
    end_of_grace: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_due: bool,
    boundary: EventBoundary,
}

impl ResponseBody {
    /// Wraps the body of `response`, the response to the request of `running`.
    pub(super) fn wrap(
        mut response: Response<LoggedBody>,
        mut running: RequestGuard,
        phase: &watch::Receiver<ListenerPhase>,
    ) -> Response<Self> {
        running.answered();
        let event = response.extensions_mut().remove::<FinalEvent>();
        let final_event = event.map(|FinalEvent(event)| {
            let mut phase = phase.clone();
            PendingFinalEvent {
                event,
                end_of_grace: Box::pin(
                    async move { reached(&mut phase, ListenerPhase::Ending).await },
                ),
                is_due: false,
                boundary: EventBoundary::default(),
            }
        });
        response.map(|body| ResponseBody {
            body: Some(body),
            final_event,
            send_buffer: current_send_buffer(),
            delayed_error: DelayedError::default(),
            _running: running,
        })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut delayed_error = std::mem::take(&mut self.delayed_error);
        let polled = delayed_error.poll(cx, |cx| self.poll_body(cx));
        self.delayed_error = delayed_error;
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.delayed_error.0.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            // A final event may exceed the body's own hint.
            Some(body) if self.final_event.is_none() => body.size_hint(),
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl ResponseBody {
    /// Polls the body, without delaying errors.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        if let Some(buffer) = &self.send_buffer {
            buffer.set_full(false);
        }
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Some(final_event) = &mut self.final_event
            && final_event.boundary.is_between_events()
            && final_event.poll_due(cx)
        {
            let event = std::mem::take(&mut final_event.event);
            self.body = None;
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            if let Some(buffer) = &self.send_buffer {
                buffer.set_full(true);
            }
            if let Some(final_event) = &mut self.final_event {
                final_event.boundary.advance(data);
            }
        }
        polled
    }
}

impl DelayedError {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        poll_body: impl FnOnce(&mut Context<'_>) -> PolledFrame,
    ) -> PolledFrame {
        if let Some(error) = self.0.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match poll_body(cx) {
            Poll::Ready(Some(Err(error))) => {
                self.0 = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    }
}

impl PendingFinalEvent {
    fn poll_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_due = self.is_due || self.end_of_grace.as_mut().poll(cx).is_ready();
        self.is_due
    }
}

/// Tracks whether an event stream is between two events: at its start, or after an empty line.
#[derive(Debug)]
struct EventBoundary {
    /// Lines end with LF, CR or CR LF (HTML, 9.2.5). Only LF and CR LF are recognized, since a CR may be
    /// the first half of CR LF.
    line_is_empty: bool,
    between_events: bool,
}

impl Default for EventBoundary {
    fn default() -> Self {
        EventBoundary {
            line_is_empty: true,
            between_events: true,
        }
    }
}

impl EventBoundary {
    fn is_between_events(&self) -> bool {
        self.between_events
    }

    fn advance(&mut self, data: &[u8]) {
        for byte in data {
            match byte {
                b'\n' => {
                    self.between_events = self.line_is_empty;
                    self.line_is_empty = true;
                }
                b'\r' => self.between_events = false,
                _ => {
                    self.between_events = false;
                    self.line_is_empty = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::streams::ConnectionActivity;
    use http_body_util::BodyExt;
    use std::future::poll_fn;

    fn response_body(
        body: &'static str,
        phase: ListenerPhase,
    ) -> (ResponseBody, watch::Sender<ListenerPhase>) {
        let (sender, receiver) = watch::channel(phase);
        let body = LoggedBody::from(corral_runtime::Body::from(body));
        let mut response = Response::new(body);
        let event = FinalEvent(Bytes::from_static(b"data: bye\n\n"));
        response.extensions_mut().insert(event);
        let running = ConnectionActivity::new().begin_request();
        (
            ResponseBody::wrap(response, running, &receiver).into_body(),
            sender,
        )
    }

    #[test]
    fn events_end_with_empty_line() {
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
                let mut boundary = EventBoundary::default();
                for part in text.as_bytes().chunks(piece) {
                    boundary.advance(part);
                }
                assert_eq!(boundary.is_between_events(), expected, "{text:?}");
            }
        }
    }

    #[tokio::test]
    async fn final_event_comes_only_between_events() {
        let (body, _phase) = response_body("data: x\n\n", ListenerPhase::Ending);
        let all = body.collect().await.expect("no error").to_bytes();
        assert_eq!(all, "data: bye\n\n", "nothing was sent before");
        let (mut body, phase) = response_body("data: x", ListenerPhase::Draining);
        let frame = body.frame().await.expect("data").expect("no error");
        assert_eq!(frame.data_ref().expect("data"), "data: x");
        phase.send_replace(ListenerPhase::Ending);
        assert!(body.frame().await.is_none(), "within an event");
    }

    #[tokio::test]
    async fn error_is_delayed_by_one_poll() {
        let mut delayed = DelayedError::default();
        let mut polls = Vec::new();
        let error = poll_fn(|cx| {
            let polled = delayed.poll(cx, |_| Poll::Ready(Some(Err(CallError::Internal))));
            polls.push(polled.is_pending());
            polled
        });
        let failure = error.await.expect("one").expect_err("an error");
        assert!(matches!(failure, CallError::Internal));
        assert_eq!(polls, [true, false]);
    }

    #[tokio::test]
    async fn completed_stream_gets_no_final_event() {
        let (body, _phase) = response_body("data: x\n\n", ListenerPhase::Draining);
        let all = body.collect().await.expect("no error").to_bytes();
        assert_eq!(all, "data: x\n\n");
    }

    #[tokio::test]
    async fn waiting_stream_is_woken_at_end_of_grace() {
        let (mut body, phase) = response_body("", ListenerPhase::Serving);
        let final_event = body.final_event.as_mut().expect("an event");
        let woken = poll_fn(|cx| match final_event.poll_due(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let end = async {
            tokio::task::yield_now().await;
            phase.send_replace(ListenerPhase::Ending);
        };
        tokio::join!(woken, end);
    }
}
