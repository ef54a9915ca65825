//! One HTTP request whose body and response stay open.

use crate::error::Error;
use crate::tls;
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Largest body of a refusal that is read, in bytes.
const MAX_REFUSAL: usize = 64 << 10;
/// Longest line of a host, in bytes. The interface passes at most 32 MiB at once, which base64 lengthens.
const MAX_LINE: usize = 64 << 20;

/// How to open a session.
#[derive(Clone)]
pub struct ConnectOptions {
    /// The API key, if the host wants one.
    pub key: Option<String>,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest silence of the host while a call waits.
    pub timeout: Duration,
    /// Pause between renewals of the lease, less than the host's `--io-timeout`.
    pub renew_every: Duration,
    /// For `https`: a PEM file of the certificates to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// For `https`: all settings of TLS, such as a certificate of the client, in place of `ca_file`.
    pub tls: Option<rustls::ClientConfig>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            key: None,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(300),
            renew_every: Duration::from_secs(10),
            ca_file: None,
            tls: None,
        }
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key, which logs must not have.
        formatter
            .debug_struct("ConnectOptions")
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("renew_every", &self.renew_every)
            .finish_non_exhaustive()
    }
}

/// A piece of the request's body.
pub(crate) enum Piece {
    /// Whole lines, and their share of what may be unsent.
    Lines {
        lines: Bytes,
        _unsent: Option<OwnedSemaphorePermit>,
    },
    /// The end.
    End,
}

/// The request's body.
pub(crate) struct Pieces(pub(crate) mpsc::UnboundedReceiver<Piece>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| match piece {
            Some(Piece::Lines { lines, .. }) => Some(Ok(Frame::data(lines))),
            Some(Piece::End) | None => None,
        })
    }
}

/// Connects, sends the request and waits for the response's head. The connection runs in `tasks`, as long as the sender
/// exists.
pub(crate) async fn open(
    url: &str,
    options: &ConnectOptions,
    body: Pieces,
    tasks: &mut JoinSet<()>,
) -> Result<(SendRequest<Pieces>, Lines), Error> {
    let uri = parse(url)?;
    let unreachable = |why: &dyn fmt::Display| {
        Error::Disconnected(format!("cannot reach the host at {url}: {why}"))
    };
    let connected = timeout(options.connect_timeout, connect(&uri, options, tasks)).await;
    let mut sender = match connected {
        Ok(connected) => connected.map_err(|error| unreachable(&error))?,
        Err(_) => {
            let seconds = options.connect_timeout.as_secs_f64();
            return Err(unreachable(&format!("no connection within {seconds} s")));
        }
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/x-ndjson");
    if let Some(key) = &options.key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request
        .body(body)
        .map_err(|_| Error::invalid("the API key contains characters that no key has"))?;
    let response = timeout(options.timeout, sender.send_request(request)).await;
    let response = response
        .map_err(|_| Error::TimedOut(options.timeout))?
        .map_err(|error| unreachable(&error))?;
    let (head, body) = response.into_parts();
    if head.status == 200 {
        let lines = Lines {
            body,
            buffer: Vec::new(),
            searched: 0,
        };
        return Ok((sender, lines));
    }
    let body = timeout(options.timeout, Limited::new(body, MAX_REFUSAL).collect()).await;
    let body = body.ok().and_then(Result::ok);
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    // A deployment may have OpenAI's format of errors.
    let fields = match problem["error"].is_object() {
        true => &problem["error"],
        false => &problem,
    };
    let detail = fields["detail"].as_str().or(fields["message"].as_str());
    let retry_after = head.headers.get(header::RETRY_AFTER);
    let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    Err(Error::Refused {
        status: head.status.as_u16(),
        code: fields["code"].as_str().unwrap_or_default().to_owned(),
        detail: detail.unwrap_or("it gives no reason").to_owned(),
        retry_after: seconds.map(Duration::from_secs),
    })
}

fn parse(url: &str) -> Result<Uri, Error> {
    let uri = url.parse::<Uri>().ok().filter(|uri| {
        let has_user = uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'));
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() && !has_user
    });
    uri.ok_or_else(|| {
        Error::invalid(format!(
            "the host's URL is {url:?}; expected one such as http://127.0.0.1:8080/sessions"
        ))
    })
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connect(
    uri: &Uri,
    options: &ConnectOptions,
    tasks: &mut JoinSet<()>,
) -> Result<SendRequest<Pieces>, BoxError> {
    let host = uri.host().unwrap_or_default();
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let is_secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let stream = TcpStream::connect((name, port)).await?;
    stream.set_nodelay(true)?;
    if !is_secure {
        return handshake(stream, tasks).await;
    }
    let stream = tls::connect(stream, name, options).await?;
    handshake(stream, tasks).await
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    tasks: &mut JoinSet<()>,
) -> Result<SendRequest<Pieces>, BoxError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tasks.spawn(async move {
        // The reader of the response gets the error, too.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The lines of the response.
pub(crate) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// Bytes of the buffer without a line break.
    searched: usize,
}

impl Lines {
    /// The next line.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            let fresh = &self.buffer[self.searched..];
            if let Some(length) = fresh.iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + length + 1);
                self.searched = 0;
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_LINE {
                let detail = format!("the host sent a line of more than {MAX_LINE} bytes");
                return Err(Error::Disconnected(detail));
            }
            let why = match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend(data);
                    }
                    continue;
                }
                Some(Err(error)) => error.to_string(),
                None => "it reached a limit of the deployment, was silent for too long, or the host stops".into(),
            };
            let detail = format!("the session with the host has ended: {why}");
            return Err(Error::Disconnected(detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_needs_scheme_and_host() {
        for url in ["http://127.0.0.1:8080/sessions", "https://host/a/b?c"] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for url in [
            "ftp://host/",
            "host/sessions",
            "http:///sessions",
            "http://me@host/",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn key_is_not_shown() {
        let options = ConnectOptions {
            key: Some("secret".into()),
            ..ConnectOptions::default()
        };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
