//! Stages 7 to 9: a server in this process, asked over connections that are kept open.

use super::clients::{Client, exactly};
use super::events::Events;
use super::prompts::Prompt;
use crate::complaint::Complaint;
use bytes::Bytes;
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

/// Where the plugins answer.
pub(super) const GENERATE: &str = "/generate";
pub(super) const OPENAI: &str = "/v1";
/// Most bytes of an answer that is read.
const MOST: usize = 64 << 20;

/// What all clients of a stage ask.
#[derive(Clone)]
pub(super) struct Questions {
    pub(super) engine: Engine,
    pub(super) prompts: Arc<[Prompt]>,
    pub(super) tokens: u64,
}

/// A client with a connection.
pub(super) struct Asks {
    questions: Questions,
    connection: SendRequest<Full<Bytes>>,
    streams: bool,
}

/// As many clients as are asked for, with a connection each: over TCP or through memory, and of the plugin
/// `generate`, or if one of them `streams`, of `openai`.
pub(super) async fn clients(
    server: &Server,
    count: usize,
    over_tcp: bool,
    streams: bool,
    questions: &Questions,
) -> Result<Vec<Asks>, Complaint> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let connection = if over_tcp {
            let stream = TcpStream::connect(server.public_address()).await?;
            stream.set_nodelay(true)?;
            open(stream).await?
        } else {
            let full = "the server takes no more connections";
            let stream = server.connect();
            open(stream.ok_or_else(|| Complaint::Failed(full.into()))?).await?
        };
        clients.push(Asks {
            questions: questions.clone(),
            connection,
            streams,
        });
    }
    Ok(clients)
}

async fn open<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Complaint>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends when the sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

impl Client for Asks {
    async fn ask(&mut self, number: usize) -> Result<u64, Complaint> {
        let no_prompt = || Complaint::Failed("there is no such request".into());
        let prompt = self.questions.prompts.get(number).ok_or_else(no_prompt)?;
        let (length, expected) = (prompt.tokens.len() as u64, self.questions.tokens);
        let (path, body) = if self.streams {
            (format!("{OPENAI}/completions"), streamed(prompt, expected))
        } else {
            (GENERATE.to_owned(), whole(prompt, expected))
        };
        let answer = self.post(&path, &body).await?;
        let (read, generated) = if self.streams {
            let usage = usage(answer).await?;
            (
                usage["prompt_tokens"].as_u64(),
                usage["completion_tokens"].as_u64(),
            )
        } else {
            let bytes = Limited::new(answer.into_body(), MOST).collect().await;
            let bytes = bytes.map_err(cut_off())?.to_bytes();
            let answer: Value = serde_json::from_slice(&bytes)?;
            (answer["prompt_tokens"].as_u64(), answer["tokens"].as_u64())
        };
        if read != Some(length) {
            let read = read.map_or("no".to_owned(), |read| read.to_string());
            let error = format!("the plugin read {read} tokens of a prompt of {length}");
            return Err(Complaint::Failed(error.into()));
        }
        self.questions.engine.clear_cache()?;
        exactly(expected, generated.unwrap_or(0))
    }
}

impl Asks {
    async fn post(&mut self, path: &str, body: &Value) -> Result<Response<Incoming>, Complaint> {
        let request = Request::post(path)
            .header(HOST, "bench")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(Complaint::telling("no request could be made"))?;
        self.connection.ready().await?;
        let answer = self.connection.send_request(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let said = Limited::new(answer.into_body(), MOST).collect().await;
        let said = said.map_err(cut_off())?.to_bytes();
        let said: String = String::from_utf8_lossy(&said).chars().take(400).collect();
        Err(Complaint::Failed(
            format!("{path} answered {status}; is the right plugin there? It said: {said}").into(),
        ))
    }
}

/// What `generate` is asked.
fn whole(prompt: &Prompt, tokens: u64) -> Value {
    json!({"prompt": prompt.text, "max_tokens": tokens, "ignore_end": true})
}

/// What `openai` is asked. Tokens, so that the prompt has as many as it is to have.
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

/// Reads a stream to its end; returns what it says that it took.
async fn usage(answer: Response<Incoming>) -> Result<Value, Complaint> {
    let mut body = answer.into_body();
    let mut events = Events::default();
    while let Some(frame) = body.frame().await {
        if let Some(bytes) = frame.map_err(cut_off())?.data_ref() {
            events.read(bytes);
        }
    }
    let last = events.last_before_done().ok_or_else(|| {
        let error = "a stream ended before its end; see the log of the plugin openai";
        Complaint::Failed(error.into())
    })?;
    let mut last: Value = serde_json::from_str(last)?;
    Ok(last["usage"].take())
}

fn cut_off<E: Into<crate::complaint::Cause>>() -> impl FnOnce(E) -> Complaint {
    Complaint::telling("the plugin ended in the midst of its answer")
}
