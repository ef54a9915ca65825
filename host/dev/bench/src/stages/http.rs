//! Stages 7 to 9: requests to a server in this process over keep-alive connections.

use super::clients::{Client, check_length};
use super::prompts::Prompt;
use crate::requests::read_events;
use bytes::Bytes;
use corral_cli::{Cause, Error};
use corral_engine::Engine;
use corral_server::Server;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub(super) const GENERATE_ROUTE: &str = "/generate";
pub(super) const OPENAI_ROUTE: &str = "/v1";

const MAX_BODY_BYTES: usize = 64 << 20;

/// The requests of all clients of a stage.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) engine: Engine,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) tokens: u64,
}

pub(super) struct HttpClient {
    requests: Requests,
    connection: SendRequest<Full<Bytes>>,
    streams: bool,
}

/// Opens `count` clients, over TCP or in memory. They ask the plugin `openai` for streams, or `generate` for whole
/// responses.
pub(super) async fn connect(
    server: &Server,
    count: usize,
    over_tcp: bool,
    streams: bool,
    requests: &Requests,
) -> Result<Vec<HttpClient>, Error> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let connection = if over_tcp {
            let stream = TcpStream::connect(server.public_address()).await?;
            stream.set_nodelay(true)?;
            open(stream).await?
        } else {
            let full = || Error::failed("the server accepts no more connections");
            open(server.connect().ok_or_else(full)?).await?
        };
        clients.push(HttpClient {
            requests: requests.clone(),
            connection,
            streams,
        });
    }
    Ok(clients)
}

async fn open<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    Ok(sender)
}

impl Client for HttpClient {
    async fn ask(&mut self, number: usize) -> Result<u64, Error> {
        let missing = || Error::failed("there is no such request");
        let prompt = self.requests.prompts.get(number).ok_or_else(missing)?;
        let (length, expected) = (prompt.tokens.len() as u64, self.requests.tokens);
        let (prompt_tokens, generated) = if self.streams {
            let body = streamed(prompt, expected);
            let path = format!("{OPENAI_ROUTE}/completions");
            let usage = read_usage(self.post(&path, &body).await?).await?;
            let prompt_tokens = usage["prompt_tokens"].as_u64();
            (prompt_tokens, usage["completion_tokens"].as_u64())
        } else {
            let body = whole(prompt, expected);
            let response = self.post(GENERATE_ROUTE, &body).await?;
            let bytes = Limited::new(response.into_body(), MAX_BODY_BYTES);
            let bytes = bytes.collect().await.map_err(cut_off())?.to_bytes();
            let response: Value = serde_json::from_slice(&bytes)?;
            let prompt_tokens = response["prompt_tokens"].as_u64();
            (prompt_tokens, response["tokens"].as_u64())
        };
        if prompt_tokens != Some(length) {
            return Err(Error::failed(format!(
                "the plugin counts {} tokens in a prompt of {length}",
                prompt_tokens.unwrap_or(0)
            )));
        }
        self.requests.engine.clear_prefix_cache()?;
        check_length(expected, generated.unwrap_or(0))
    }
}

impl HttpClient {
    async fn post(&mut self, path: &str, body: &Value) -> Result<Response<Incoming>, Error> {
        let request = Request::post(path)
            .header(HOST, "bench")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(Error::context("cannot build a request"))?;
        self.connection.ready().await?;
        let response = self.connection.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = Limited::new(response.into_body(), MAX_BODY_BYTES);
        let text = text.collect().await.map_err(cut_off())?.to_bytes();
        let text: String = String::from_utf8_lossy(&text).chars().take(400).collect();
        Err(Error::failed(format!(
            "{path} answered {status}; is it the right plugin? its response: {text}"
        )))
    }
}

/// A request to `generate`.
fn whole(prompt: &Prompt, tokens: u64) -> Value {
    json!({"prompt": prompt.text, "max_tokens": tokens, "ignore_eos": true})
}

/// A request to `openai`, with the prompt as tokens to keep its exact length.
fn streamed(prompt: &Prompt, tokens: u64) -> Value {
    json!({
        "prompt": prompt.tokens,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

/// Reads a stream to its end; returns the usage in the event before `[DONE]`.
async fn read_usage(response: Response<Incoming>) -> Result<Value, Error> {
    let (mut last, mut is_done) = (String::new(), false);
    read_events(&"the plugin openai", response, |data| match data {
        "[DONE]" => is_done = true,
        _ => data.clone_into(&mut last),
    })
    .await?;
    if !is_done {
        return Err(Error::failed(
            "a stream ended without [DONE]; see the log of the plugin openai",
        ));
    }
    let mut last: Value = serde_json::from_str(&last)?;
    Ok(last["usage"].take())
}

fn cut_off<E: Into<Cause>>() -> impl FnOnce(E) -> Error {
    Error::context("the plugin ended within its response")
}
