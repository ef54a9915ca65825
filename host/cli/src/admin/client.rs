//! Requests to an admin listener, each on a connection of its own.

use super::{Address, AdminArgs};
use crate::Error;
use crate::progress::Progress;
use crate::terminal::printable;
use bytes::Bytes;
use corral_runtime::PolledFrame;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(150);
/// The same for a change: a compilation takes up to five minutes, and may wait for another one.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(650);
const MAX_JSON_BYTES: usize = 64 << 20;
/// Bytes of an upload between two updates of the progress bar.
const UPLOAD_PIECE_BYTES: usize = 64 << 10;

pub(crate) struct AdminClient {
    args: AdminArgs,
    token: Option<String>,
}

pub(crate) enum RequestBody {
    Empty,
    Json(Value),
    Upload(Bytes, Progress),
}

impl AdminClient {
    /// A client with the token that the arguments or the environment name.
    pub(crate) fn new(args: &AdminArgs) -> Result<Self, Error> {
        Ok(AdminClient {
            args: args.clone(),
            token: args.token()?,
        })
    }

    /// Sends a request; returns the JSON body of a successful response.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Value, Error> {
        let (status, value) = self.try_request(method, path, body).await?;
        match status.is_success() {
            true => Ok(value),
            false => Err(self.response_error(status, &value)),
        }
    }

    /// Sends a request; returns the status and the JSON body of any response.
    pub(crate) async fn try_request(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<(StatusCode, Value), Error> {
        let response = self.open(method, path, body).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_JSON_BYTES);
        let body = body.collect().await;
        let bytes = body.map_err(Error::context(self.not_corral()))?.to_bytes();
        let value = serde_json::from_slice(&bytes).map_err(Error::context(self.not_corral()))?;
        Ok((status, value))
    }

    /// Sends a request; returns the response once its head has arrived.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = match body {
            RequestBody::Empty => request.body(Outgoing::default()),
            RequestBody::Json(value) => request
                .header(CONTENT_TYPE, "application/json")
                .body(Outgoing::from(Bytes::from(value.to_string()))),
            RequestBody::Upload(bytes, progress) => request
                .header(CONTENT_TYPE, "application/wasm")
                .body(Outgoing {
                    bytes,
                    progress: Some(progress),
                }),
        };
        let request = request.map_err(Error::context(
            "the admin token contains invalid characters; see the output of 'corral serve'",
        ))?;
        let refused = format!(
            "nothing answers at {}; start 'corral serve', or name its admin listener: \
             --admin http://HOST:PORT",
            self.args.address
        );
        let ca = self.args.ca.as_deref();
        exchange(
            &self.args.address,
            ca,
            request,
            &refused,
            &self.not_corral(),
        )
        .await
    }

    /// The error of a response that is not a success.
    pub(crate) fn response_error(&self, status: StatusCode, value: &Value) -> Error {
        let message = match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => "the server needs the admin token, whose file \
                'corral serve' prints: name it with --token-file or its store with --store, or set \
                CORRAL_ADMIN_TOKEN"
                .to_owned(),
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                "this is not the server's admin token, whose file 'corral serve' prints".to_owned()
            }
            // A public listener does not know the routes of the admin API.
            _ => match value["detail"].as_str() {
                Some(detail) if value["code"] != "no-route" => printable(detail),
                _ => self.not_corral(),
            },
        };
        Error::failed(message)
    }

    /// The error message for a response that is not from an admin listener.
    pub(crate) fn not_corral(&self) -> String {
        format!(
            "{} is not an admin listener of this version of Corral; 'corral serve' prints its \
             address: admin on http://HOST:PORT",
            self.args.address
        )
    }
}

/// Sends a request to a listener. The error is `refused` if nothing accepts connections, `invalid` if the response is
/// not HTTP.
pub(crate) async fn exchange(
    address: &Address,
    ca: Option<&Path>,
    mut request: Request<Outgoing>,
    refused: &str,
    invalid: &str,
) -> Result<Response<Incoming>, Error> {
    let late = || {
        Error::context(format!(
            "{address} did not answer in time; check the server"
        ))
    };
    let stream = timeout(CONNECT_TIMEOUT, address.connect(ca, refused))
        .await
        .map_err(late())??;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    // It ends with the response's body.
    tokio::spawn(connection);
    if let Ok(host) = address.host().parse() {
        request.headers_mut().insert(HOST, host);
    }
    let limit = match *request.method() {
        Method::GET | Method::HEAD => RESPONSE_TIMEOUT,
        _ => CHANGE_TIMEOUT,
    };
    timeout(limit, sender.send_request(request))
        .await
        .map_err(late())?
        .map_err(Error::context(invalid))
}

/// The body of a request, which updates a progress bar.
#[derive(Default)]
pub(crate) struct Outgoing {
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
        let length = self.bytes.len().min(UPLOAD_PIECE_BYTES);
        if length == 0 {
            return Poll::Ready(None);
        }
        let piece = self.bytes.split_to(length);
        if let Some(progress) = &self.progress {
            progress.add(length);
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
