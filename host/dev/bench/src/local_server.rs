//! A server in this process on free ports, and single requests to it.

use corral_cli::{Error, startup};
use corral_engine::{Engine, ModelPool};
use corral_runtime::{LinkedComponents, PluginConfig, Runtime};
use corral_server::deployments::Deployments;
use corral_server::{
    Access, AdminToken, RequestPolicy, Server, ServerOptions, ServerSockets, Services, Telemetry,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The route of the plugin `generate`.
pub(crate) const ROUTE: &str = "/generate";

/// A limit that no request reaches: a large model takes minutes.
pub(crate) const NO_TIME_LIMIT: Duration = Duration::from_secs(86_400);

/// Limits of time that no request reaches.
pub(crate) fn no_time_limits() -> corral_runtime::Limits {
    corral_runtime::Limits {
        time: NO_TIME_LIMIT,
        cpu: NO_TIME_LIMIT,
        ..corral_runtime::Limits::default()
    }
}

/// One thread for all clients, apart from the server's.
pub(crate) fn client_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::context("cannot start the clients' thread"))
}

/// Starts a server with the plugin `generate`.
pub(crate) async fn start(engine: &Engine, plugin: &Path) -> Result<Server, Error> {
    let models = ModelPool::loaded(vec![engine.clone()]);
    let limits = corral_runtime::Limits {
        // Has no effect on an engine without a prefix cache.
        share_prefixes: true,
        ..no_time_limits()
    };
    let linked = LinkedComponents::default();
    serve(models, ROUTE, plugin, limits, linked, None).await
}

/// Starts a server with one plugin and its linked components at `route`, which sends this telemetry.
pub(crate) async fn serve(
    models: ModelPool,
    route: &str,
    plugin: &Path,
    limits: corral_runtime::Limits,
    linked: LinkedComponents,
    telemetry: Option<Arc<Telemetry>>,
) -> Result<Server, Error> {
    let runtime = startup::runtime(None, &models)?;
    let config = PluginConfig {
        limits: limits.clone(),
        linked,
        ..PluginConfig::default()
    };
    let plugin = runtime
        .load_plugin_into(&runtime.new_deployment(), route, plugin.to_owned(), config)
        .await?;
    let deployments = Deployments::new(runtime.clone(), None, limits, Access::Open);
    deployments.add_static(route.parse()?, plugin, RequestPolicy::default())?;
    let options = ServerOptions {
        telemetry,
        ..ServerOptions::default()
    };
    open(models, runtime, deployments, None, options).await
}

/// Starts a server with these deployments. `token` guards the admin listener.
pub(crate) async fn open(
    models: ModelPool,
    runtime: Runtime,
    deployments: Deployments,
    token: Option<AdminToken>,
    mut options: ServerOptions,
) -> Result<Server, Error> {
    let sockets = ServerSockets::bind("127.0.0.1:0", "127.0.0.1:0").await?;
    let sockets = sockets.with_admin_token(token)?;
    // The bench is the only client.
    let limits = &mut options.limits;
    limits.max_connections_per_address = Some(limits.max_connections);
    let server =
        Server::start(sockets, options).map_err(Error::context("cannot start the listeners"))?;
    server.serve(Services {
        runtime,
        models,
        deployments,
    });
    Ok(server)
}

/// Reads a stream of exactly `tokens` tokens to its end.
pub(crate) async fn stream(address: SocketAddr, prompt: &str, tokens: u64) -> Result<(), Error> {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": true});
    let response = post(address, &body).await?;
    if response.contains(&format!("\"tokens\":{tokens},")) && response.contains("[DONE]") {
        return Ok(());
    }
    Err(wrong_plugin(
        &response,
        &format!("stream of {tokens} tokens"),
    ))
}

/// Generates one token; returns the whole response.
pub(crate) async fn complete(address: SocketAddr, prompt: &str) -> Result<Value, Error> {
    let body = json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true});
    let response = post(address, &body).await?;
    // A chunked response has lengths around the JSON.
    let json = response.find('{').zip(response.rfind('}'));
    json.and_then(|(start, end)| serde_json::from_str(response.get(start..=end)?).ok())
        .filter(|response: &Value| response["tokens"] == 1)
        .ok_or_else(|| wrong_plugin(&response, "token"))
}

/// Posts to the plugin; returns the response with its head.
async fn post(address: SocketAddr, body: &Value) -> Result<String, Error> {
    let head = format!("POST {ROUTE} HTTP/1.1\r\nContent-Type: application/json\r\n");
    let response = exchange(address, &head, body.to_string().as_bytes()).await?;
    if response.starts_with("HTTP/1.1 200 ") {
        return Ok(response);
    }
    Err(wrong_plugin(&response, "response"))
}

/// Sends a request over a new connection: `head` is its first lines, common headers are added. Returns the response
/// with its head.
pub(crate) async fn exchange(
    address: SocketAddr,
    head: &str,
    body: &[u8],
) -> Result<String, Error> {
    let length = body.len();
    let head =
        format!("{head}Host: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body).await?;
    let mut response = Vec::new();
    connection.read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

fn wrong_plugin(response: &str, expected: &str) -> Error {
    let skipped = response.chars().count().saturating_sub(400);
    let end: String = response.chars().skip(skipped).collect();
    Error::failed(format!(
        "the plugin returned no {expected}; is it 'generate'? its response: {end}"
    ))
}
