//! What a client sees: a server on free ports, and the answers of the plugin `generate` through it.

use crate::complaint::Complaint;
use crate::house;
use corral_engine::{Engine, Models};
use corral_runtime::Runtime;
use corral_server::deployments::Deployments;
use corral_server::{Access, House, Limits, Listeners, Server, Terms, Token};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where the plugin answers.
pub(super) const ROUTE: &str = "/generate";

/// Starts a server on a free port.
pub(super) async fn start(engine: &Engine, plugin: &Path) -> Result<Server, Complaint> {
    let models = Models::loaded(vec![engine.clone()]);
    let limits = corral_runtime::Limits {
        // Nobody is cut off by it: a large model takes minutes.
        time: Duration::from_secs(86_400),
        // Where the engine keeps no prefixes there are none to share.
        share_prefixes: true,
        ..corral_runtime::Limits::default()
    };
    serve(models, ROUTE, plugin, limits).await
}

/// Starts a server on a free port that has one plugin, at `route`.
pub(super) async fn serve(
    models: Models,
    route: &str,
    plugin: &Path,
    limits: corral_runtime::Limits,
) -> Result<Server, Complaint> {
    let runtime = house::runtime(None, &models)?;
    let plugin = house::load_plugin(&runtime, route, plugin, limits.clone()).await?;
    let deployments = Deployments::new(runtime.clone(), None, limits, Access::Open);
    deployments.add_fixed(route.parse()?, plugin, Terms::default())?;
    open(models, runtime, deployments, None).await
}

/// Opens the house on free ports; `token` guards the admin listener.
pub(super) async fn open(
    models: Models,
    runtime: Runtime,
    deployments: Deployments,
    token: Option<Token>,
) -> Result<Server, Complaint> {
    let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0").await?;
    let listeners = listeners.guarded_by(token)?;
    let server = Server::start(listeners, Limits::default())
        .map_err(Complaint::telling("the listeners could not be started"))?;
    server.open(House {
        runtime,
        models,
        deployments,
    });
    Ok(server)
}

/// Reads one stream of exactly `tokens` tokens to its end.
pub(super) async fn stream(
    address: SocketAddr,
    prompt: &str,
    tokens: u64,
) -> Result<(), Complaint> {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_end": true, "stream": true});
    let answer = post(address, &body).await?;
    if answer.contains(&format!("\"tokens\":{tokens},")) && answer.contains("[DONE]") {
        return Ok(());
    }
    Err(no_plugin(&answer, &format!("stream of {tokens} tokens")))
}

/// Asks for one token, and returns the whole answer.
pub(super) async fn complete(address: SocketAddr, prompt: &str) -> Result<Value, Complaint> {
    let body = json!({"prompt": prompt, "max_tokens": 1, "ignore_end": true});
    let answer = post(address, &body).await?;
    // It may have come in chunks, with their lengths around it.
    let json = answer.find('{').zip(answer.rfind('}'));
    json.and_then(|(from, to)| serde_json::from_str(answer.get(from..=to)?).ok())
        .filter(|answer: &Value| answer["tokens"] == 1)
        .ok_or_else(|| no_plugin(&answer, "token"))
}

/// Posts to the plugin; returns all that comes back, heads too.
async fn post(address: SocketAddr, body: &Value) -> Result<String, Complaint> {
    let head = format!("POST {ROUTE} HTTP/1.1\r\nContent-Type: application/json\r\n");
    let answer = exchange(address, &head, body.to_string().as_bytes()).await?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(answer);
    }
    Err(no_plugin(&answer, "answer"))
}

/// Sends a request over a connection of its own: `head` is its first lines, those that all requests have
/// are added. Returns all that comes back, heads too.
pub(super) async fn exchange(
    address: SocketAddr,
    head: &str,
    body: &[u8],
) -> Result<String, Complaint> {
    let length = body.len();
    let head =
        format!("{head}Host: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn no_plugin(answer: &str, expected: &str) -> Complaint {
    let end = answer.chars().count().saturating_sub(400);
    let end: String = answer.chars().skip(end).collect();
    let error = format!("the plugin gave no {expected}; is it 'generate'? it said: {end}");
    Complaint::Failed(error.into())
}
