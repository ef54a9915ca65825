//! A client's keep-alive connection, and closed loops of such clients.

use super::url::Url;
use crate::Error;
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

/// Opens with the first request, and again after the server has closed it.
pub struct Connection {
    authority: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum ConnectionError {
    /// Nothing accepts connections there.
    Connect(io::Error),
    /// The connection broke, or the bytes are not HTTP.
    Broken(hyper::Error),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionError::Connect(error) => error.fmt(f),
            ConnectionError::Broken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl Connection {
    pub fn new(url: &Url) -> Self {
        Connection {
            authority: url.authority.clone(),
            sender: None,
        }
    }

    /// Whether the next request can use an open connection.
    pub fn is_open(&self) -> bool {
        self.sender.is_some()
    }

    /// Sends a request that has its `Host`; returns the response once its head has arrived. The caller reads the
    /// body to its end or calls [`Self::close`] before the next request.
    pub async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ConnectionError> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            let retry = request.clone();
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.sender = Some(sender);
                    return Ok(response);
                }
                // The server closed the connection meanwhile: an unanswered request goes over a new one.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None if error.error().is_incomplete_message() => request = retry,
                    None => return Err(ConnectionError::Broken(error.into_error())),
                },
            }
        }
        let mut sender = open(&self.authority).await?;
        let response = sender.send_request(request).await;
        let response = response.map_err(ConnectionError::Broken)?;
        self.sender = Some(sender);
        Ok(response)
    }

    /// Makes the next request open a new connection.
    pub fn close(&mut self) {
        self.sender = None;
    }
}

async fn open(authority: &str) -> Result<SendRequest<Full<Bytes>>, ConnectionError> {
    let stream = TcpStream::connect(authority)
        .await
        .map_err(ConnectionError::Connect)?;
    stream.set_nodelay(true).map_err(ConnectionError::Connect)?;
    let opened = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(ConnectionError::Broken)?;
    // It ends with the sender and the last response.
    tokio::spawn(connection);
    Ok(sender)
}

/// Runs clients, such as connections, in a closed loop: each takes the next of `numbers` and awaits `ask`, which returns
/// the client and a result. Returns all results, in no order, or the first error.
pub async fn closed_loop<C, T, F, A>(
    clients: impl IntoIterator<Item = C>,
    numbers: Range<u64>,
    ask: F,
) -> Result<Vec<T>, Error>
where
    C: Send + 'static,
    T: Send + 'static,
    F: Fn(C, u64) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<(C, T), Error>> + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(numbers.start));
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let (next, ask, end) = (Arc::clone(&next), ask.clone(), numbers.end);
        tasks.spawn(async move {
            let mut results = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Ok::<_, Error>(results);
                }
                let (returned, result) = ask(client, number).await?;
                client = returned;
                results.push(result);
            }
        });
    }
    let mut results = Vec::new();
    while let Some(client) = tasks.join_next().await {
        results.extend(client.map_err(Error::context("a client crashed"))??);
    }
    Ok(results)
}
