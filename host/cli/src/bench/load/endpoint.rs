//! An endpoint, and the exchange of one request.

use super::response::{Failure, FailureKind, ResponseTimes, read_stream, read_whole};
use super::workload::Workload;
use crate::Error;
use crate::bench::connection::{Connection, ConnectionError};
use crate::bench::url::Url;
use crate::terminal::printable;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of an error response.
const MAX_ERROR_BYTES: usize = 64 << 10;

pub(super) struct Endpoint {
    pub(super) url: Url,
    workload: Arc<Workload>,
    path: String,
    model: Option<String>,
    authorization: Option<HeaderValue>,
    /// From sending a request to the end of its response.
    timeout: Duration,
}

pub(super) struct RequestResult {
    /// Tokens that the request asked for.
    pub(super) max_tokens: u64,
    pub(super) response: Result<ResponseTimes, Failure>,
}

impl Endpoint {
    pub(super) fn new(
        url: &Url,
        workload: &Arc<Workload>,
        model: Option<&str>,
        api_key: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let authorization = api_key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        let authorization = authorization.transpose().map_err(Error::context(
            "--api-key contains characters that no key has",
        ))?;
        Ok(Endpoint {
            url: url.clone(),
            path: url.openai(workload.path()),
            workload: Arc::clone(workload),
            model: model.map(str::to_owned),
            authorization,
            timeout,
        })
    }

    /// Sends the request with this number and reads the response. Times count from `intended`, or from now.
    pub(super) async fn ask(
        &self,
        connection: &mut Connection,
        number: u64,
        intended: Option<Instant>,
    ) -> RequestResult {
        let (body, max_tokens) = self.workload.request(number, self.model.as_deref());
        let request = self.request(body.to_string());
        let start = intended.unwrap_or_else(Instant::now);
        let exchange = self.exchange(connection, request, start, max_tokens);
        let response = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(response) => response,
            Err(_) => {
                let message = format!("no whole response within {} s", self.timeout.as_secs_f64());
                Err(Failure::new(FailureKind::Timeout, &message))
            }
        };
        // After other failures the body has an unread rest.
        let is_read = response
            .as_ref()
            .err()
            .is_none_or(|failure| matches!(failure.kind, FailureKind::Status(_)));
        if !is_read {
            connection.close();
        }
        RequestResult {
            max_tokens,
            response,
        }
    }

    fn request(&self, body: String) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::post(&self.path)
            .header(HOST, &self.url.authority)
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(Bytes::from(body)))
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        request: Result<Request<Full<Bytes>>, http::Error>,
        start: Instant,
        max_tokens: u64,
    ) -> Result<ResponseTimes, Failure> {
        let invalid = |error: http::Error| Failure::new(FailureKind::Invalid, &error.to_string());
        let response = connection.send(request.map_err(invalid)?).await?;
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MAX_ERROR_BYTES);
            let body = body.collect().await;
            let body = body.map_err(|error| Failure::new(FailureKind::Cut, &error.to_string()))?;
            return Err(Failure::status(status.as_u16(), &body.to_bytes()));
        }
        match self.workload.stream {
            true => {
                check_content_type(&response)?;
                read_stream(response.into_body(), start, max_tokens).await
            }
            false => read_whole(response.into_body(), start).await,
        }
    }

    /// Sends one small request, to report a wrong URL, key or model before the load starts.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let endpoint = Endpoint {
            url: self.url.clone(),
            workload: Arc::new(self.workload.for_probe()),
            path: self.path.clone(),
            model: self.model.clone(),
            authorization: self.authorization.clone(),
            timeout: self.timeout,
        };
        let mut connection = Connection::new(&self.url);
        // No other request has this number, so the probe fills no cache.
        let result = endpoint.ask(&mut connection, u64::MAX, None).await;
        let failure = result.response.err();
        failure.map_or(Ok(()), |failure| Err(self.error(&failure)))
    }

    fn error(&self, failure: &Failure) -> Error {
        let (url, message) = (&self.url, printable(&failure.message));
        let text = match failure.kind {
            FailureKind::Connect => format!(
                "nothing answers at {url} ({message}); start the server, or name another URL"
            ),
            FailureKind::Status(status @ (401 | 403)) => {
                format!("{url} answered with {status}: {message}; give a key with --api-key KEY")
            }
            FailureKind::Status(404 | 405) => format!(
                "there is no {} at {url}; name the URL above it, or add or drop --chat; the server said: {message}",
                self.path
            ),
            FailureKind::Status(status) => format!(
                "{url} answered with {status}: {message}; see --model, --no-ignore-eos and --output-tokens"
            ),
            FailureKind::Timeout => {
                format!("{url}: {message}; wait longer with --timeout SECONDS")
            }
            FailureKind::Lost | FailureKind::Invalid => {
                format!("{url} is not an endpoint of OpenAI's API: {message}")
            }
            FailureKind::Cut | FailureKind::Error | FailureKind::Endless => {
                format!("cannot measure {url}: {}: {message}", failure.kind)
            }
        };
        Error::failed(text)
    }
}

/// Refuses a response that is not an event stream.
fn check_content_type(response: &Response<Incoming>) -> Result<(), Failure> {
    let value = response.headers().get(CONTENT_TYPE);
    let value = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or("none");
    match value.starts_with("text/event-stream") {
        true => Ok(()),
        false => {
            let message = format!("its content type is {value} instead of text/event-stream");
            Err(Failure::new(FailureKind::Invalid, &message))
        }
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        let kind = match error {
            ConnectionError::Connect(_) => FailureKind::Connect,
            ConnectionError::Broken(_) => FailureKind::Lost,
        };
        Failure::new(kind, &error.to_string())
    }
}
