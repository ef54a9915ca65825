//! `corral bench deploy`: from a deploy to its first answer.
//!
//! A server in this process with a store and a cache of its own is deployed to as any client does it: the
//! component is uploaded, the manifest posted, and then the plugin is asked for one token. In each round a
//! component comes that was never seen, which has to be compiled; a new revision of it, of which the
//! server has everything; and, after it was removed, the same component again: it travels and is written
//! to the disk, but its compiled code is still in the cache.

use super::http::{self, ROUTE};
use super::load::config;
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{median, median_and_ends};
use crate::arguments::DeployBench;
use crate::complaint::Complaint;
use corral_engine::{Engine, Models};
use corral_runtime::{Limits, Runtime, Settings};
use corral_server::deployments::{Bounds, Deployments, Digest, Store};
use corral_server::{Access, Server, Token};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The server is there for this process alone.
const TOKEN: &str = "as-long-as-the-bench-runs";
const NAME: &str = "bench";

/// What is deployed.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A component that was never seen.
    New,
    /// One that the server has, with another configuration.
    Kept,
    /// One whose compiled code the server has.
    Cached,
}

impl Way {
    const ALL: [Self; 3] = [Way::New, Way::Kept, Way::Cached];

    fn name(self) -> &'static str {
        match self {
            Way::New => "new",
            Way::Kept => "kept, compiled",
            Way::Cached => "uploaded, compiled",
        }
    }
}

/// One deploy. Times are in seconds.
struct Deployed {
    way: Way,
    upload: f64,
    deploy: f64,
    answer: f64,
    /// What of the deploy was inside of wasmtime: compiling, or loading compiled code.
    compile: f64,
}

impl Deployed {
    fn whole(&self) -> f64 {
        self.upload + self.deploy + self.answer
    }
}

const COLUMNS: [Column; 9] = [
    ("component", "component", Unit::Plain),
    ("deploys", "deploys", Unit::Plain),
    ("first answer", "first_answer_s", Unit::Milliseconds),
    ("least", "least_s", Unit::Milliseconds),
    ("most", "most_s", Unit::Milliseconds),
    ("upload", "upload_s", Unit::Milliseconds),
    ("deploy", "deploy_s", Unit::Milliseconds),
    ("in wasmtime", "compile_s", Unit::Milliseconds),
    ("request", "answer_s", Unit::Milliseconds),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &DeployBench) -> Result<(), Complaint> {
    let read = std::fs::read(&arguments.plugin);
    let component = read.map_err(Complaint::telling(&format!(
        "the component {} cannot be read; name the plugin 'generate'",
        arguments.plugin.display()
    )))?;
    let folder = Scratch::new(arguments.folder.as_deref())?;
    let measuring = &arguments.measuring;
    let config = config(measuring, None, 0)?;
    let engine = Engine::load(config)?;
    let bench = Bench::start(&engine, &folder.0).await?;
    let mut all = Vec::new();
    let mut rounds = Rounds::after_one(measuring.rounds);
    for round in rounds.by_ref() {
        let deployed = bench.round(&component, round).await?;
        // The first one warms up.
        if round > 0 {
            all.extend(deployed);
        }
    }
    bench.server.stop(std::future::ready(())).await;
    engine.shutdown();
    let (bytes, rounds) = (component.len(), rounds.measured());
    let rows = Way::ALL.map(|way| report(way, &all));
    let setup = json!({"bench": "deploy", "component_bytes": bytes, "rounds": rounds});
    let title = format!(
        "from a deploy to the first answer, a component of {bytes} bytes; medians of {rounds} rounds, ms"
    );
    tell(arguments.measuring.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

fn report(way: Way, all: &[Deployed]) -> Value {
    let of = |value: fn(&Deployed) -> f64| {
        let of_way = all.iter().filter(move |deployed| deployed.way == way);
        of_way.map(value)
    };
    let whole = Vec::from_iter(of(Deployed::whole));
    let [first_answer, least, most] = median_and_ends(&whole);
    json!({
        "component": way.name(),
        "deploys": whole.len(),
        "first_answer_s": first_answer,
        "least_s": least,
        "most_s": most,
        "upload_s": median(of(|deployed| deployed.upload)),
        "deploy_s": median(of(|deployed| deployed.deploy)),
        "compile_s": median(of(|deployed| deployed.compile)),
        "answer_s": median(of(|deployed| deployed.answer)),
    })
}

struct Bench {
    runtime: Runtime,
    server: Server,
}

impl Bench {
    /// A server with a store and a cache in `folder`.
    async fn start(engine: &Engine, folder: &Path) -> Result<Self, Complaint> {
        let models = Models::loaded(vec![engine.clone()]);
        let settings = Settings {
            cache: Some(folder.join("compiled")),
            ..Settings::default()
        };
        let runtime = Runtime::new(settings, models.clone())?;
        let store = Store::open(&folder.join("store"), Bounds::default())?;
        let limits = Limits::default();
        let deployments = Deployments::new(runtime.clone(), Some(store), limits, Access::Open);
        let token = Some(Token::new(TOKEN)?);
        let server = http::open(models, runtime.clone(), deployments, token).await?;
        Ok(Bench { runtime, server })
    }

    async fn round(&self, component: &[u8], round: u64) -> Result<Vec<Deployed>, Complaint> {
        let component = variant(component, round);
        let mut deployed = Vec::new();
        for way in Way::ALL {
            if way == Way::Cached {
                self.ask("DELETE", &format!("/deployments/{NAME}"), b"")
                    .await?;
            }
            deployed.push(self.deploy(way, &component).await?);
        }
        self.ask("DELETE", &format!("/deployments/{NAME}"), b"")
            .await?;
        Ok(deployed)
    }

    async fn deploy(&self, way: Way, component: &[u8]) -> Result<Deployed, Complaint> {
        // The client's own work: it knows the digest before it begins.
        let digest = Digest::of(component).to_string();
        let manifest = json!({
            "name": NAME,
            "component": digest,
            "routes": [ROUTE],
            "configuration": {"WAY": way.name()},
        });
        let compiled = self.compile_seconds();
        let began = Instant::now();
        if way != Way::Kept {
            self.ask("PUT", &format!("/components/{digest}"), component)
                .await?;
        }
        let uploaded = Instant::now();
        let path = format!("/deployments/{NAME}");
        self.ask("POST", &path, manifest.to_string().as_bytes())
            .await?;
        let deployed = Instant::now();
        http::complete(self.server.public_address(), "1+1=").await?;
        let answered = Instant::now();
        Ok(Deployed {
            way,
            upload: (uploaded - began).as_secs_f64(),
            deploy: (deployed - uploaded).as_secs_f64(),
            answer: (answered - deployed).as_secs_f64(),
            compile: self.compile_seconds() - compiled,
        })
    }

    /// Where the admin API is.
    fn admin(&self) -> Result<SocketAddr, Complaint> {
        let address = self.server.admin_address().strip_prefix("http://");
        let address = address.and_then(|address| address.parse().ok());
        address.ok_or_else(|| Complaint::Failed("the bench's own server has no address".into()))
    }

    /// A request to the admin API, which has to be granted.
    async fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<(), Complaint> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\n"
        );
        let answer = http::exchange(self.admin()?, &head, body).await?;
        if answer.starts_with("HTTP/1.1 20") {
            return Ok(());
        }
        let body = answer
            .split_once("\r\n\r\n")
            .map_or(&*answer, |(_, body)| body);
        Err(Complaint::Failed(
            format!("the server refused: {body}").into(),
        ))
    }

    fn compile_seconds(&self) -> f64 {
        let counters = self.runtime.counters();
        let mut counters = counters.iter();
        let found = counters.find(|one| one.name == "corral_plugin_compile_seconds_total");
        found.map_or(0.0, |counter| counter.value)
    }
}

/// The same component with a digest of its own: a custom section at its end means nothing.
fn variant(component: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = component.to_vec();
    // Section 0 of 10 bytes: a name of one byte, and eight more.
    bytes.extend([0, 10, 1, b'v']);
    bytes.extend(number.to_le_bytes());
    bytes
}

/// A folder that is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(within: Option<&Path>) -> Result<Self, Complaint> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = within.join(format!("corral-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Complaint::telling(&format!(
            "there can be no folder in {}; name another one with --folder",
            within.display()
        )))?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "it is left");
        }
    }
}
