//! One endpoint that is asked.

use super::answer::{Answer, Failure, Kind, at_once, streamed};
use super::work::Work;
use crate::admin::harmless;
use crate::arguments::Url;
use crate::bench::connection::{Connection, Trouble};
use crate::complaint::Complaint;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes that are read of an answer that is no success.
const REFUSAL: usize = 64 << 10;

/// An endpoint, and what it is asked with.
pub(super) struct Target {
    pub(super) url: Url,
    work: Arc<Work>,
    path: String,
    model: Option<String>,
    authorization: Option<HeaderValue>,
    /// How long an answer is waited for, from its request's sending to its end.
    patience: Duration,
}

/// What became of a request.
pub(super) struct Outcome {
    /// Tokens that were asked for.
    pub(super) asked: u64,
    pub(super) answer: Result<Answer, Failure>,
}

impl Target {
    pub(super) fn new(
        url: &Url,
        work: &Arc<Work>,
        model: Option<&str>,
        key: Option<&str>,
        patience: Duration,
    ) -> Result<Self, Complaint> {
        let authorization = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        let authorization = authorization
            .transpose()
            .map_err(Complaint::telling("--key holds characters that no key has"))?;
        Ok(Target {
            url: url.clone(),
            path: url.openai(work.path()),
            work: Arc::clone(work),
            model: model.map(str::to_owned),
            authorization,
            patience,
        })
    }

    /// Sends the request of this number and reads the answer. Times count from when it was `intended`, or
    /// from now.
    pub(super) async fn ask(
        &self,
        connection: &mut Connection,
        number: u64,
        intended: Option<Instant>,
    ) -> Outcome {
        let (body, asked) = self.work.request(number, self.model.as_deref());
        let request = self.request(body.to_string());
        let from = intended.unwrap_or_else(Instant::now);
        let exchange = self.exchange(connection, request, from, asked);
        let answer = match tokio::time::timeout(self.patience, exchange).await {
            Ok(answer) => answer,
            Err(_) => {
                let said = format!("no whole answer within {} s", self.patience.as_secs_f64());
                Err(Failure::new(Kind::Timeout, &said))
            }
        };
        // Of all others the body was read to its end.
        if !matches!(
            &answer,
            Ok(_)
                | Err(Failure {
                    kind: Kind::Status(_),
                    ..
                })
        ) {
            connection.close();
        }
        Outcome { asked, answer }
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
        from: Instant,
        asked: u64,
    ) -> Result<Answer, Failure> {
        let request = request.map_err(|error| Failure::new(Kind::Odd, &error.to_string()))?;
        let response = connection.send(request).await?;
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), REFUSAL).collect().await;
            let body = body.map_err(|error| Failure::new(Kind::Cut, &error.to_string()))?;
            return Err(Failure::refused(status.as_u16(), &body.to_bytes()));
        }
        match self.work.stream {
            true => {
                check_stream(&response)?;
                streamed(response.into_body(), from, asked).await
            }
            false => at_once(response.into_body(), from).await,
        }
    }

    /// Asks once, for a few tokens, to see that there is an endpoint; what is wrong with it is a complaint.
    pub(super) async fn look(&self) -> Result<(), Complaint> {
        let target = Target {
            url: self.url.clone(),
            work: Arc::new(self.work.for_a_look()),
            path: self.path.clone(),
            model: self.model.clone(),
            authorization: self.authorization.clone(),
            patience: self.patience,
        };
        let mut connection = Connection::new(&self.url);
        // A number that no other request has, so that nothing of it is in a cache.
        let outcome = target.ask(&mut connection, u64::MAX, None).await;
        let failure = outcome.answer.err();
        failure.map_or(Ok(()), |failure| Err(self.complaint(&failure)))
    }

    /// What the user is told of an endpoint that can't be measured.
    fn complaint(&self, failure: &Failure) -> Complaint {
        let (url, said) = (&self.url, harmless(&failure.said));
        let text = match failure.kind {
            Kind::Connect => {
                format!("nothing answers at {url} ({said}); start the server, or name another URL")
            }
            Kind::Status(status @ (401 | 403)) => {
                format!("{url} answered with {status}: {said}; name a key with --key KEY")
            }
            Kind::Status(404 | 405) => format!(
                "there is no {} at {url}; name the URL below which it is, or ask in the other way, \
                 with or without --chat; it said: {said}",
                self.path
            ),
            Kind::Status(status) => format!(
                "{url} answered with {status}: {said}; see --model, --no-ignore-eos and --generate"
            ),
            Kind::Timeout => format!("{url} gave {said}; wait longer with --timeout SECONDS"),
            Kind::Lost | Kind::Odd => {
                format!("what answers at {url} is no endpoint of OpenAI's API: {said}")
            }
            Kind::Cut | Kind::Error | Kind::Endless => {
                format!("{url} can't be measured: {}: {said}", failure.kind)
            }
        };
        Complaint::Failed(text.into())
    }
}

/// Refuses an answer that is none in events.
fn check_stream(response: &Response<Incoming>) -> Result<(), Failure> {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("none");
    match kind.starts_with("text/event-stream") {
        true => Ok(()),
        false => {
            let said = format!("its content type is {kind}, and not text/event-stream");
            Err(Failure::new(Kind::Odd, &said))
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        let kind = match trouble {
            Trouble::Connect(_) => Kind::Connect,
            Trouble::Lost(_) => Kind::Lost,
        };
        Failure::new(kind, &trouble.to_string())
    }
}
