//! `corral-bench deploy`: from a deploy to its first response.
//!
//! A server in this process has a new store and cache. The bench uploads the component, posts the manifest and asks
//! the plugin for one token, as any client does. Each round deploys a new component, which must be compiled; a new
//! revision of it, of which the server has everything; and the same component after its removal, which is uploaded
//! again while its compiled code is still in the cache.

use crate::args::EngineArgs;
use crate::local_server::{self, ROUTE};
use crate::workload::{config, value};
use clap::Args;
use corral_cli::Error;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::{Engine, ModelPool};
use corral_runtime::{Limits, Runtime, RuntimeConfig};
use corral_server::deployments::{Deployments, Digest, Store, StoreLimits};
use corral_server::{Access, AdminToken, Server, ServerOptions};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
}

/// The admin token of the bench's own server.
const TOKEN: &str = "as-long-as-the-bench-runs";
const NAME: &str = "bench";

/// What a server has of a component before it is deployed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Variant {
    /// A new component.
    New,
    /// A component that the server stores, with another configuration.
    Stored,
    /// A component that the server has compiled, but does not store.
    Compiled,
}

impl Variant {
    const ALL: [Self; 3] = [Variant::New, Variant::Stored, Variant::Compiled];

    fn name(self) -> &'static str {
        match self {
            Variant::New => "new",
            Variant::Stored => "stored, compiled",
            Variant::Compiled => "uploaded, compiled",
        }
    }
}

/// Times of a deploy, in seconds.
struct DeployTimes {
    variant: Variant,
    upload: f64,
    deploy: f64,
    response: f64,
    /// The part of `deploy` inside of wasmtime: compiling, or loading compiled code.
    compile: f64,
}

impl DeployTimes {
    fn total(&self) -> f64 {
        self.upload + self.deploy + self.response
    }
}

const COLUMNS: [Column; 9] = [
    ("component", "component", Unit::Plain),
    ("deploys", "deploys", Unit::Plain),
    ("first response", "first_response_s", Unit::Milliseconds),
    ("min", "first_response_min_s", Unit::Milliseconds),
    ("max", "first_response_max_s", Unit::Milliseconds),
    ("upload", "upload_s", Unit::Milliseconds),
    ("deploy", "deploy_s", Unit::Milliseconds),
    ("in wasmtime", "compile_s", Unit::Milliseconds),
    ("request", "request_s", Unit::Milliseconds),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &DeployArgs) -> Result<(), Error> {
    let component = std::fs::read(&args.plugin).map_err(Error::context(format!(
        "cannot read the component {}; name the plugin 'generate'",
        args.plugin.display()
    )))?;
    let failed =
        "cannot create a directory for the store and the cache; name another one with TMPDIR";
    let dir = tempfile::tempdir().map_err(Error::context(failed))?;
    let engine = Engine::load(config(&args.engine, 0)?)?;
    let server = DeployServer::start(&engine, dir.path()).await?;
    let mut deploys = Vec::new();
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        let times = measure_round(&server, &component, round).await?;
        if round > 0 {
            deploys.extend(times);
        }
    }
    server.stop().await;
    engine.shutdown();
    let (bytes, rounds) = (component.len(), rounds.measured());
    let rows = Variant::ALL.map(|variant| report(variant, &deploys));
    let setup = json!({"bench": "deploy", "component_bytes": bytes, "rounds": rounds});
    let title = format!(
        "from a deploy to the first response, a component of {bytes} bytes; medians of {rounds} rounds, ms"
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

fn report(variant: Variant, deploys: &[DeployTimes]) -> Value {
    let times = |value: fn(&DeployTimes) -> f64| {
        let own = deploys.iter().filter(move |times| times.variant == variant);
        own.map(value)
    };
    let total = Vec::from_iter(times(DeployTimes::total));
    let [first_response, min, max] = median_min_max(&total);
    json!({
        "component": variant.name(),
        "deploys": total.len(),
        "first_response_s": first_response,
        "first_response_min_s": min,
        "first_response_max_s": max,
        "upload_s": median(times(|times| times.upload)),
        "deploy_s": median(times(|times| times.deploy)),
        "compile_s": median(times(|times| times.compile)),
        "request_s": median(times(|times| times.response)),
    })
}

/// Deploys all variants once.
async fn measure_round(
    server: &DeployServer,
    component: &[u8],
    round: u64,
) -> Result<Vec<DeployTimes>, Error> {
    let component = unique_component(component, round);
    let mut deploys = Vec::new();
    for variant in Variant::ALL {
        if variant == Variant::Compiled {
            server.remove(NAME).await?;
        }
        let compile_before = server.compile_seconds();
        let [upload, deploy] = server.deploy(NAME, ROUTE, variant, &component).await?;
        let start = Instant::now();
        local_server::complete(server.public_address(), "1+1=").await?;
        deploys.push(DeployTimes {
            variant,
            upload,
            deploy,
            response: start.elapsed().as_secs_f64(),
            compile: server.compile_seconds() - compile_before,
        });
    }
    server.remove(NAME).await?;
    Ok(deploys)
}

/// A server with a store and a cache of its own, to which the bench deploys over the admin API.
pub(crate) struct DeployServer {
    runtime: Runtime,
    server: Server,
}

impl DeployServer {
    /// Starts a server with its store and cache in `dir`.
    pub(crate) async fn start(engine: &Engine, dir: &Path) -> Result<Self, Error> {
        let models = ModelPool::loaded(vec![engine.clone()]);
        let config = RuntimeConfig {
            cache: Some(dir.join("compiled")),
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::new(config, models.clone())?;
        let store = Store::open(&dir.join("store"), StoreLimits::default())?;
        let limits = Limits::default();
        let deployments = Deployments::new(runtime.clone(), Some(store), limits, Access::Open);
        let token = Some(AdminToken::new(TOKEN)?);
        let options = ServerOptions::default();
        let server =
            local_server::open(models, runtime.clone(), deployments, token, options).await?;
        Ok(Self { runtime, server })
    }

    /// Deploys a component, and uploads it before if the server does not store it. Returns the seconds of the upload and
    /// of the deploy.
    pub(crate) async fn deploy(
        &self,
        name: &str,
        route: &str,
        variant: Variant,
        component: &[u8],
    ) -> Result<[f64; 2], Error> {
        // The digest is the client's work and not measured.
        let digest = Digest::of(component).to_string();
        let manifest = json!({
            "name": name,
            "component": digest,
            "routes": [route],
            "configuration": {"VARIANT": variant.name()},
        });
        let start = Instant::now();
        if variant != Variant::Stored {
            let path = format!("/components/{digest}");
            self.admin_request("PUT", &path, component).await?;
        }
        let uploaded = Instant::now();
        let path = format!("/deployments/{name}");
        self.admin_request("POST", &path, manifest.to_string().as_bytes())
            .await?;
        let times = [uploaded - start, uploaded.elapsed()];
        Ok(times.map(|time| time.as_secs_f64()))
    }

    /// Removes a deployment.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), Error> {
        self.admin_request("DELETE", &format!("/deployments/{name}"), b"")
            .await
    }

    /// Runs the plugins.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn public_address(&self) -> SocketAddr {
        self.server.public_address()
    }

    pub(crate) async fn stop(self) {
        self.server.stop(std::future::ready(())).await;
    }

    fn admin_address(&self) -> Result<SocketAddr, Error> {
        let address = self.server.admin_address().strip_prefix("http://");
        let address = address.and_then(|address| address.parse().ok());
        address.ok_or_else(|| Error::failed("the bench's server has no admin address"))
    }

    /// Sends a request to the admin API; the response must be a success.
    async fn admin_request(&self, method: &str, path: &str, body: &[u8]) -> Result<(), Error> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\n"
        );
        let response = local_server::exchange(self.admin_address()?, &head, body).await?;
        if response.starts_with("HTTP/1.1 20") {
            return Ok(());
        }
        let body = response.split_once("\r\n\r\n");
        let body = body.map_or(&*response, |(_, body)| body);
        Err(Error::failed(format!("the server refused: {body}")))
    }

    fn compile_seconds(&self) -> f64 {
        value(
            &self.runtime.metrics(),
            "corral_plugin_compile_seconds_total",
        )
    }
}

/// The component with a digest of its own, by a custom section at its end.
pub(crate) fn unique_component(component: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = component.to_vec();
    // Section 0 of 10 bytes: a name of one byte, and eight more.
    bytes.extend([0, 10, 1, b'v']);
    bytes.extend(number.to_le_bytes());
    bytes
}
