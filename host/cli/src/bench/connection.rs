//! A client's connection to a server, kept alive from one request to the next; and clients that take turns.

use crate::arguments::Url;
use crate::complaint::Complaint;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Made with the first request, and again when the server has closed it.
pub(super) struct Connection {
    authority: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nothing answers there.
    Connect(io::Error),
    /// The connection broke, or what came over it is not HTTP.
    Lost(hyper::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Connect(error) => error.fmt(f),
            Trouble::Lost(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Trouble {}

impl Connection {
    pub(super) fn new(url: &Url) -> Self {
        Connection {
            authority: url.authority.clone(),
            sender: None,
        }
    }

    /// Whether it was used before, and may be again.
    pub(super) fn is_open(&self) -> bool {
        self.sender.is_some()
    }

    /// Sends a request, which has its `Host`; returns the answer as soon as its head is there. Its body has to
    /// be read to its end before the next request, or the connection be closed.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Trouble> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            let again = request.clone();
            let sent = sender.try_send_request(request).await;
            match sent {
                Ok(answer) => {
                    self.sender = Some(sender);
                    return Ok(answer);
                }
                // The server closed it meanwhile: what was not sent, or sent to nobody, goes over a new one.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None if error.error().is_incomplete_message() => request = again,
                    None => return Err(Trouble::Lost(error.into_error())),
                },
            }
        }
        let mut sender = open(&self.authority).await?;
        let answer = sender.send_request(request).await.map_err(Trouble::Lost)?;
        self.sender = Some(sender);
        Ok(answer)
    }

    /// The next request goes over a new one.
    pub(super) fn close(&mut self) {
        self.sender = None;
    }
}

async fn open(authority: &str) -> Result<SendRequest<Full<Bytes>>, Trouble> {
    let stream = TcpStream::connect(authority)
        .await
        .map_err(Trouble::Connect)?;
    stream.set_nodelay(true).map_err(Trouble::Connect)?;
    let shaken = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(Trouble::Lost)?;
    // It ends with the last answer that is read from it, or when that is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

/// A closed loop: so many clients, each with a connection of its own, take one of the `numbers` after the
/// other, and `ask` something with it. Returns what all of them got, in no order.
pub(super) async fn closed<T, F, A>(
    url: &Url,
    clients: u64,
    numbers: Range<u64>,
    ask: F,
) -> Result<Vec<T>, Complaint>
where
    T: Send + 'static,
    F: Fn(Connection, u64) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = (Connection, T)> + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(numbers.start));
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (next, ask, end) = (Arc::clone(&next), ask.clone(), numbers.end);
        let mut connection = Connection::new(url);
        all.spawn(async move {
            let mut answers = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return answers;
                }
                let (kept, answer) = ask(connection, number).await;
                connection = kept;
                answers.push(answer);
            }
        });
    }
    let mut answers = Vec::new();
    while let Some(client) = all.join_next().await {
        answers.extend(client.map_err(Complaint::telling("a client crashed"))?);
    }
    Ok(answers)
}
