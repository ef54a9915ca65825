//! Asks a server's listeners: one request on a connection of its own.

use super::progress::Progress;
use crate::Error;
use crate::admin::Admin;
use crate::terminal::printable;
use bytes::Bytes;
use corral_runtime::PolledFrame;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer's head may take. A component may take two minutes to be compiled, its wait for a
/// place included.
const PATIENCE: Duration = Duration::from_secs(150);
/// Most bytes of an answer in JSON.
const MOST: usize = 64 << 20;
/// Bytes that are sent in one piece, so that the bar moves.
const PIECE: usize = 64 << 10;

/// The admin API of a server.
pub(super) struct Client {
    admin: Admin,
    token: Option<String>,
}

/// What a request brings.
pub(super) enum Sent {
    Nothing,
    Json(Value),
    Upload(Bytes, Progress),
}

impl Client {
    pub(super) fn new(admin: &Admin, token_file: Option<&Path>) -> Result<Self, Error> {
        Ok(Client {
            admin: admin.clone(),
            token: crate::admin_token::text(token_file)?,
        })
    }

    /// Sends a request and reads the whole answer, which has to be a success.
    pub(super) async fn ask(&self, method: Method, path: &str, sent: Sent) -> Result<Value, Error> {
        let (status, value) = self.try_ask(method, path, sent).await?;
        if status.is_success() {
            return Ok(value);
        }
        Err(self.refused(status, &value))
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn try_ask(
        &self,
        method: Method,
        path: &str,
        sent: Sent,
    ) -> Result<(StatusCode, Value), Error> {
        let answer = self.open(method, path, sent).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        let bytes = body.map_err(Error::context(self.no_corral()))?.to_bytes();
        let value = serde_json::from_slice(&bytes).map_err(Error::context(self.no_corral()))?;
        Ok((status, value))
    }

    /// Sends a request and returns the answer as soon as its head is there.
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        sent: Sent,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = match sent {
            Sent::Nothing => request.body(Outgoing::default()),
            Sent::Json(value) => request
                .header("content-type", "application/json")
                .body(Outgoing::from(Bytes::from(value.to_string()))),
            Sent::Upload(bytes, progress) => request
                .header("content-type", "application/wasm")
                .body(Outgoing {
                    bytes,
                    progress: Some(progress),
                }),
        };
        let request = request.map_err(Error::context(
            "the admin token holds characters that no token has; see 'corral serve'",
        ))?;
        let gone = format!(
            "nothing answers at {}; start 'corral serve --store FOLDER', or name its admin \
             listener: --admin http://HOST:PORT",
            self.admin.address
        );
        exchange(&self.admin, request, &gone, &self.no_corral()).await
    }

    /// What a server said in place of doing what it was asked to.
    pub(super) fn refused(&self, status: StatusCode, value: &Value) -> Error {
        let hint = match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => Some(
                "the server wants the admin token: name its file with --token-file, or put it into CORRAL_ADMIN_TOKEN; 'corral serve' says where it is",
            ),
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                Some("this is not the server's admin token; 'corral serve' says where that is")
            }
            _ => None,
        };
        let told = value["detail"].as_str().map(printable);
        Error::Failed(match (hint, told) {
            (Some(hint), _) => hint.into(),
            (None, Some(told)) => told.into(),
            (None, None) => self.no_corral().into(),
        })
    }

    fn no_corral(&self) -> String {
        format!(
            "what answers at {} is no admin listener of this version of Corral; \
             'corral serve' says where it is: admin on http://HOST:PORT",
            self.admin.address
        )
    }
}

/// One exchange with a listener. `gone` and `odd` say what is wrong when nobody answers, or not with HTTP.
pub(super) async fn exchange(
    listener: &Admin,
    mut request: Request<Outgoing>,
    gone: &str,
    odd: &str,
) -> Result<Response<Incoming>, Error> {
    let address = &listener.address;
    let late = format!("{address} did not answer in time; try again, or look at the server");
    let stream = timeout(CONNECT, listener.connect(gone))
        .await
        .map_err(Error::context(late.clone()))??;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    // It ends with the answer's body, or when that is dropped.
    tokio::spawn(connection);
    if let Ok(host) = address.host().parse() {
        request.headers_mut().insert(HOST, host);
    }
    timeout(PATIENCE, sender.send_request(request))
        .await
        .map_err(Error::context(late.clone()))?
        .map_err(Error::context(odd))
}

/// A request's body, sent in pieces while a bar moves.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Bytes,
    progress: Option<Progress>,
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Outgoing {
            bytes,
            progress: None,
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> PolledFrame<Infallible> {
        let length = self.bytes.len().min(PIECE);
        if length == 0 {
            return Poll::Ready(None);
        }
        let piece = self.bytes.split_to(length);
        if let Some(progress) = &self.progress {
            progress.sent(length);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
