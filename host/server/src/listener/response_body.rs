//! The body of a response as hyper polls it.
//!
//! Tracks the activity of its connection. Adds to a stream of server-sent events, between two events only:
//! comments while it is silent, so that neither the client nor a proxy gives it up, and last events when it
//! fails or when the grace period of a shutdown is over. Lines in Ollama's format get a last line, but no
//! comments. Other responses are cut off, so that a client cannot mistake a partial answer for a complete one.

use super::connection_streams::{RequestGuard, SendBuffer, current_send_buffer};
use super::unsent_bytes::UnsentBytes;
use crate::http_counters::HttpCounters;
use crate::problem::{Problem, StreamFormat, shown_response_id};
use crate::request_id::REQUEST_ID;
use crate::request_log::LoggedBody;
use crate::shutdown::{ListenerPhase, reached};
use bytes::Bytes;
use corral_runtime::{CallError, LastLine, PolledFrame};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

/// A comment in an event stream, which clients ignore.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What ends a stream early: an extension of the response. Only for bodies without a length or an encoding.
#[derive(Clone, Debug)]
pub(crate) struct StreamEnd {
    pub(crate) format: StreamFormat,
    /// Explains an error of the plugin while developing.
    pub(crate) last_error_line: Option<Arc<LastLine>>,
}

pub(super) struct ResponseBody {
    /// `None` after the end that the host wrote.
    body: Option<LoggedBody>,
    stream: Option<OpenStream>,
    send_buffer: Option<Arc<SendBuffer>>,
    delayed_error: DelayedError,
    counters: Option<Arc<HttpCounters>>,
    _running: RequestGuard,
}

/// Delays an error by one poll. On an error hyper drops everything that it has not written, even the
/// response's header; the pending poll in between lets it write what came before.
#[derive(Debug, Default)]
struct DelayedError(Option<CallError>);

/// A stream as far as it was sent.
struct OpenStream {
    end: StreamEnd,
    /// The id of the response in OpenAI's Responses API: that of the request until an event shows it.
    response_id: String,
    shows_response_id: bool,
    /// Completes when the grace period of a shutdown is over.
    end_of_grace: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_due: bool,
    boundary: EventBoundary,
    /// `None` if comments are off, or the format has none.
    keep_alive: Option<KeepAlive>,
}

/// Measures the silence of an event stream.
struct KeepAlive {
    interval: Duration,
    last_sent: Instant,
    timer: Pin<Box<Sleep>>,
}

impl ResponseBody {
    /// Wraps the body of `response`, the response to the request of `running`. A silent event stream gets a
    /// comment at each interval of `keep_alive`. `counters` count what the client has not read.
    pub(super) fn wrap(
        mut response: Response<LoggedBody>,
        mut running: RequestGuard,
        phase: &watch::Receiver<ListenerPhase>,
        keep_alive: Option<Duration>,
        counters: Option<Arc<HttpCounters>>,
    ) -> Response<Self> {
        running.answered();
        let end = response.extensions_mut().remove::<StreamEnd>();
        let stream = end.map(|end| {
            let id = response.headers().get(REQUEST_ID);
            let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
            let mut phase = phase.clone();
            let keep_alive = keep_alive.filter(|_| end.format != StreamFormat::JsonLines);
            OpenStream {
                end,
                response_id: format!("resp_{id}"),
                shows_response_id: false,
                end_of_grace: Box::pin(
                    async move { reached(&mut phase, ListenerPhase::Ending).await },
                ),
                is_due: false,
                boundary: EventBoundary::default(),
                keep_alive: keep_alive.map(KeepAlive::new),
            }
        });
        response.map(|body| ResponseBody {
            body: Some(body),
            stream,
            send_buffer: current_send_buffer(),
            delayed_error: DelayedError::default(),
            counters,
            _running: running,
        })
    }
}

impl Body for ResponseBody {
    type Data = UnsentBytes;
    type Error = CallError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<UnsentBytes>, CallError>>> {
        let mut delayed_error = std::mem::take(&mut self.delayed_error);
        let polled = delayed_error.poll(cx, |cx| self.poll_body(cx));
        self.delayed_error = delayed_error;
        let counted = |bytes| UnsentBytes::new(bytes, self.counters.as_ref());
        polled.map_ok(|frame| frame.map_data(counted))
    }

    fn is_end_stream(&self) -> bool {
        self.delayed_error.0.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            // Further events may exceed the body's own hint.
            Some(body) if self.stream.is_none() => body.size_hint(),
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
        let polled = match &mut self.stream {
            None => Pin::new(body).poll_frame(cx),
            Some(stream) => match stream.poll_end(cx) {
                Poll::Ready(end) => {
                    self.body = None;
                    Poll::Ready(Some(Ok(Frame::data(end))))
                }
                Poll::Pending => match Pin::new(body).poll_frame(cx) {
                    Poll::Ready(Some(Err(error))) if stream.is_complete_so_far() => {
                        let end = stream.error_end(error);
                        self.body = None;
                        Poll::Ready(Some(Ok(Frame::data(end))))
                    }
                    Poll::Pending => stream.poll_keep_alive(cx),
                    polled => polled,
                },
            },
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            if let Some(buffer) = &self.send_buffer {
                buffer.set_full(true);
            }
            if let Some(stream) = &mut self.stream {
                stream.sent(data);
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

impl OpenStream {
    /// Whether all that was sent are whole events or lines.
    fn is_complete_so_far(&self) -> bool {
        match self.end.format {
            StreamFormat::JsonLines => self.boundary.line_is_empty,
            StreamFormat::Events(_) | StreamFormat::ResponsesEvents => self.boundary.between_events,
        }
    }

    /// Ready with the end when a shutdown ends the stream.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if !self.is_complete_so_far() {
            return Poll::Pending;
        }
        self.is_due = self.is_due || self.end_of_grace.as_mut().poll(cx).is_ready();
        match self.is_due {
            true => Poll::Ready(self.end_of(&Problem::shutting_down())),
            false => Poll::Pending,
        }
    }

    /// The end of a stream whose plugin fails.
    fn error_end(&self, error: CallError) -> Bytes {
        let problem = Problem::of_call(error, self.end.last_error_line.as_deref());
        self.end_of(&problem)
    }

    fn end_of(&self, problem: &Problem) -> Bytes {
        problem.stream_end(self.end.format, &self.response_id)
    }

    /// Ready with a comment when the stream was silent for an interval.
    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        match &mut self.keep_alive {
            Some(keep_alive) if self.boundary.between_events => keep_alive
                .poll_silence(cx)
                .map(|()| Some(Ok(Frame::data(Bytes::from_static(KEEP_ALIVE))))),
            _ => Poll::Pending,
        }
    }

    fn sent(&mut self, data: &[u8]) {
        self.boundary.advance(data);
        if self.end.format == StreamFormat::ResponsesEvents
            && !self.shows_response_id
            && let Some(id) = shown_response_id(data)
        {
            self.response_id = id;
            self.shows_response_id = true;
        }
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.last_sent = Instant::now();
        }
    }
}

impl KeepAlive {
    fn new(interval: Duration) -> Self {
        KeepAlive {
            interval,
            last_sent: Instant::now(),
            timer: Box::pin(sleep(interval)),
        }
    }

    /// Ready when nothing was sent for the interval. The timer moves only when it fires, since most streams are not
    /// silent.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let until = self.last_sent + self.interval;
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
        Poll::Pending
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
    fn advance(&mut self, data: &[u8]) {
        // What is before the last other byte changes nothing.
        let last = data.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
        for byte in &data[last.unwrap_or(0)..] {
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
    use crate::listener::connection_streams::ConnectionActivity;
    use crate::problem::ErrorFormat;
    use bytes::Buf;
    use http_body_util::BodyExt;
    use std::future::poll_fn;

    const EVENTS: StreamFormat = StreamFormat::Events(ErrorFormat::OpenAi);

    fn response_body(
        body: impl Into<corral_runtime::Body>,
        phase: ListenerPhase,
    ) -> (ResponseBody, watch::Sender<ListenerPhase>) {
        response_body_of(EVENTS, body, phase)
    }

    fn response_body_of(
        format: StreamFormat,
        body: impl Into<corral_runtime::Body>,
        phase: ListenerPhase,
    ) -> (ResponseBody, watch::Sender<ListenerPhase>) {
        let (sender, receiver) = watch::channel(phase);
        let mut response = Response::new(LoggedBody::from(body.into()));
        let end = StreamEnd {
            format,
            last_error_line: None,
        };
        response.extensions_mut().insert(end);
        let running = ConnectionActivity::new().begin_request();
        let interval = Some(Duration::from_millis(20));
        let wrapped = ResponseBody::wrap(response, running, &receiver, interval, None);
        (wrapped.into_body(), sender)
    }

    async fn next_text(body: &mut ResponseBody) -> Option<String> {
        let frame = body.frame().await?.expect("no error");
        let data = frame.into_data().expect("data");
        Some(String::from_utf8(data.chunk().to_vec()).expect("text"))
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
                assert_eq!(boundary.between_events, expected, "{text:?}");
            }
        }
    }

    #[tokio::test]
    async fn final_event_comes_only_between_events() {
        let (body, _phase) = response_body("data: x\n\n", ListenerPhase::Ending);
        let all = body.collect().await.expect("no error").to_bytes();
        let bye = Problem::shutting_down().stream_end(EVENTS, "");
        assert_eq!(all, bye, "nothing was sent before");
        let (mut body, phase) = response_body("data: x", ListenerPhase::Draining);
        let frame = body.frame().await.expect("data").expect("no error");
        assert_eq!(frame.data_ref().expect("data").chunk(), b"data: x");
        phase.send_replace(ListenerPhase::Ending);
        assert!(body.frame().await.is_none(), "within an event");
    }

    #[tokio::test]
    async fn last_line_follows_whole_lines_only() {
        let body = |text: &'static str| {
            let (sender, chunks) = tokio::sync::mpsc::channel(1);
            sender
                .try_send(Bytes::from_static(text.as_bytes()))
                .expect("room");
            let body = corral_runtime::Body::from_channel(chunks);
            let (body, phase) =
                response_body_of(StreamFormat::JsonLines, body, ListenerPhase::Draining);
            (body, phase, sender)
        };
        for (text, is_ended) in [("{}\n", true), ("{}\n{", false)] {
            let (mut body, phase, sender) = body(text);
            assert_eq!(next_text(&mut body).await.as_deref(), Some(text));
            // Silence brings no comment.
            let silence = tokio::time::timeout(Duration::from_millis(60), body.frame());
            assert!(silence.await.is_err(), "{text}");
            phase.send_replace(ListenerPhase::Ending);
            drop(sender);
            let last = next_text(&mut body).await;
            assert_eq!(
                last.is_some_and(|last| last.starts_with("{\"error\":")),
                is_ended
            );
        }
    }

    #[tokio::test]
    async fn last_event_has_id_of_earlier_ones() {
        let text = "data: {\"response\":{\"id\":\"resp_9\"}}\n\n";
        let (sender, chunks) = tokio::sync::mpsc::channel(1);
        let sent = sender.try_send(Bytes::from_static(text.as_bytes()));
        sent.expect("room");
        let body = corral_runtime::Body::from_channel(chunks);
        let format = StreamFormat::ResponsesEvents;
        let (mut body, phase) = response_body_of(format, body, ListenerPhase::Draining);
        assert_eq!(next_text(&mut body).await.as_deref(), Some(text));
        phase.send_replace(ListenerPhase::Ending);
        let last = next_text(&mut body).await.expect("an end");
        assert!(last.contains("\"id\":\"resp_9\""), "{last}");
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
        let stream = body.stream.as_mut().expect("an event stream");
        let woken = poll_fn(|cx| stream.poll_end(cx));
        let end = async {
            tokio::task::yield_now().await;
            phase.send_replace(ListenerPhase::Ending);
        };
        tokio::join!(woken, end);
    }

    #[tokio::test]
    async fn silent_stream_gets_comments_between_events() {
        let (sender, chunks) = tokio::sync::mpsc::channel(1);
        let body = corral_runtime::Body::from_channel(chunks);
        let (mut body, _phase) = response_body(body, ListenerPhase::Serving);
        for _ in 0..2 {
            let comment = next_text(&mut body).await;
            assert_eq!(comment.as_deref(), Some(": keep-alive\n\n"));
        }
        let send = async |text: &'static str| {
            let sent = sender.send(Bytes::from_static(text.as_bytes())).await;
            sent.expect("the body reads");
        };
        send("data: x").await;
        while let Some(text) = next_text(&mut body).await {
            if text == "data: x" {
                break;
            }
        }
        // Within an event it waits, however long.
        let rest = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            send("\n\n").await;
        };
        let (next, ()) = tokio::join!(next_text(&mut body), rest);
        assert_eq!(next.as_deref(), Some("\n\n"));
        let comment = next_text(&mut body).await;
        assert_eq!(comment.as_deref(), Some(": keep-alive\n\n"));
    }
}
