//! `corral-bench languages`: what a plugin costs in each language, and what a model on another host costs.
//!
//! The plugin `measure` has a form in each language. A round measures each: requests without inference and a loop over
//! `next`, called in this process, and a deploy of compiled code with its first request, over HTTP. Every second round
//! takes the forms in reverse order. Two forms in Rust look something up in a table in these requests, which each instance
//! computes, or an initialization. The remote form is the one in Rust, composed with `corral-remote`, under the
//! command line of wasmtime; it has a session on the bench's server.
//!
//! The time of a token is the time beyond llama_decode, which the engine counts; steps of different lengths then do not
//! matter. What a request takes beside its tokens is subtracted, by requests of one token.

mod remote;

use crate::args::EngineArgs;
use crate::deploy::{DeployServer, Variant};
use crate::local_server::{exchange, no_time_limits as limits};
use crate::plugin_overhead;
use crate::workload::{check_context, config, metric, status};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{float, median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::Engine;
use corral_runtime::{Plugin, PluginConfig, Reuse};
use remote::{ServedProgram, compose};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub(crate) struct LanguagesArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Directory of the components that 'make plugins' builds
    #[arg(long, value_name = "DIR")]
    plugins: PathBuf,
    /// Directory of the components that plugins/measure/languages.sh builds
    #[arg(long, value_name = "DIR")]
    languages: PathBuf,
    /// Command line of wasmtime, for the remote form; without it, this form is left out
    #[arg(long, value_name = "FILE")]
    wasmtime: Option<PathBuf>,
    /// Requests without inference, in each round
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(1..=100_000))]
    requests: u64,
    /// Tokens of a loop
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(2..=2000))]
    output_tokens: u64,
}

const PROMPT: &str = "1234567890123456789012345678901";
/// Most tokens of the prompt: some models put one before a text.
const PROMPT_TOKENS: u64 = 32;
/// Loops of each length in a round.
const LOOPS: u64 = 5;
/// The route of the measured deployment, and its name.
const ROUTE: &str = "/measure";
const NAME: &str = "measure";
/// The metric of the time inside llama_decode.
const COMPUTE_SECONDS: &str = "corral_engine_compute_seconds_total";

/// How some forms reuse instances: as a manifest with an empty table `reuse`.
const REUSE: Reuse = Reuse {
    instances: 4,
    calls: 1000,
    age: Duration::from_secs(300),
};

const COLUMNS: [Column; 12] = [
    ("form", "form", Unit::Plain),
    ("µs a request", "request_s", Unit::Microseconds),
    ("to Rust", "request_ratio", Unit::Ratio),
    ("µs a token", "token_s", Unit::Microseconds),
    ("min", "token_min_s", Unit::Microseconds),
    ("max", "token_max_s", Unit::Microseconds),
    ("to Rust", "token_ratio", Unit::Ratio),
    ("min", "token_ratio_min", Unit::Ratio),
    ("max", "token_ratio_max", Unit::Ratio),
    ("ms a deploy", "deploy_s", Unit::Milliseconds),
    ("ms first request", "first_request_s", Unit::Milliseconds),
    ("MB", "component_mb", Unit::Ratio),
];

/// A way to run the loop.
struct Form {
    name: &'static str,
    /// The workload of the requests without inference.
    request: &'static str,
    /// The workload of `measure` that is the loop.
    operation: &'static str,
    host: Host,
    /// What is deployed; empty if deploys and requests are those of another form.
    component: Vec<u8>,
    times: Times,
}

enum Host {
    /// This process.
    Own(Plugin),
    Wasmtime(ServedProgram),
}

/// Seconds of each round.
#[derive(Default)]
struct Times {
    request: Vec<f64>,
    token: Vec<f64>,
    deploy: Vec<f64>,
    first_request: Vec<f64>,
}

/// Measures and prints the figures.
pub(crate) async fn measure(args: &LanguagesArgs) -> Result<(), Error> {
    let tokens = args.output_tokens;
    let mut config = config(&args.engine, 0)?;
    // A plugin's loop continues the cached sequence.
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    let context = engine.info().context;
    check_context(context, "--output-tokens", tokens, PROMPT_TOKENS)?;
    let failed =
        "cannot create a directory for the store and the cache; name another one with TMPDIR";
    let dir = tempfile::tempdir().map_err(Error::context(failed))?;
    let server = DeployServer::start(&engine, dir.path()).await?;
    let mut forms = forms(args, &server, dir.path()).await?;
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        let mut order: Vec<_> = forms.iter_mut().collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for form in order {
            form.measure(args, &engine, &server).await?;
            if round == 0 {
                form.times = Times::default();
            }
        }
    }
    let rounds = rounds.measured();
    let rows: Vec<_> = forms.iter().map(|form| form.report(&forms[0])).collect();
    // The remote form ends before the host of its session.
    drop(forms);
    server.stop().await;
    engine.shutdown();
    let setup = json!({
        "bench": "languages",
        "requests": args.requests,
        "output_tokens": tokens,
        "rounds": rounds,
    });
    let title = format!(
        "requests without inference; loops over next, {tokens} tokens, top 64, beyond llama_decode; deploys of compiled \
         code; medians of {rounds} rounds"
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// All forms; the first is the one in Rust, to which the others are compared.
async fn forms(
    args: &LanguagesArgs,
    server: &DeployServer,
    dir: &Path,
) -> Result<Vec<Form>, Error> {
    let rust = args.plugins.join("measure.wasm");
    let other = |language| args.languages.join(format!("measure-{language}.wasm"));
    let mut forms = Vec::new();
    for (name, file) in [
        ("Rust", rust.clone()),
        ("Python", other("python")),
        ("JavaScript", other("javascript")),
        ("C", other("c")),
        ("Go", other("go")),
    ] {
        let component = read(&file)?;
        let loaded = server.runtime().load_plugin(name, file, limits()).await?;
        forms.push(Form::new(name, "top", Host::Own(loaded), component));
    }
    for (name, language) in [
        ("Python, instances reused", "python"),
        ("JavaScript, reused", "javascript"),
    ] {
        let config = PluginConfig {
            limits: limits(),
            reuse: Some(REUSE),
            ..PluginConfig::default()
        };
        let deployment = server.runtime().new_deployment();
        let loaded = server
            .runtime()
            .load_plugin_into(&deployment, name, other(language), config)
            .await?;
        forms.push(Form::new(name, "top", Host::Own(loaded), Vec::new()));
    }
    // A table that is costly to compute: by each instance, and by the initialization.
    for (name, initialize) in [("Rust, table", false), ("Rust, table, initialized", true)] {
        let config = PluginConfig {
            limits: limits(),
            initialize,
            ..PluginConfig::default()
        };
        let deployment = server.runtime().new_deployment();
        let runtime = server.runtime();
        let loaded = runtime.load_plugin_into(&deployment, name, rust.clone(), config);
        let mut form = Form::new(name, "top", Host::Own(loaded.await?), Vec::new());
        form.request = "table";
        forms.push(form);
    }
    if let Host::Own(rust) = &forms[0].host {
        let host = Host::Own(rust.clone());
        forms.push(Form::new("Rust, generate", "generate", host, Vec::new()));
    }
    if let Some(wasmtime) = &args.wasmtime {
        let sessions = read(&args.plugins.join("sessions.wasm"))?;
        server
            .deploy("sessions", "/sessions", Variant::New, &sessions)
            .await?;
        let url = format!("http://{}/sessions", server.public_address());
        let program = compose(&rust, &args.plugins.join("corral-remote.wasm"), &url)?;
        let file = dir.join("remote.wasm");
        std::fs::write(&file, program)?;
        let host = Host::Wasmtime(ServedProgram::start(wasmtime, &file)?);
        forms.push(Form::new("Rust, remote", "top", host, Vec::new()));
    }
    Ok(forms)
}

/// Reads a component.
fn read(file: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(file).map_err(Error::context(format!(
        "cannot read the component {}; build it with 'make plugins' or plugins/measure/languages.sh",
        file.display()
    )))
}

impl Form {
    fn new(name: &'static str, operation: &'static str, host: Host, component: Vec<u8>) -> Self {
        Self {
            name,
            request: "none",
            operation,
            host,
            component,
            times: Times::default(),
        }
    }

    /// Measures a round.
    async fn measure(
        &mut self,
        args: &LanguagesArgs,
        engine: &Engine,
        server: &DeployServer,
    ) -> Result<(), Error> {
        if matches!(self.host, Host::Own(_)) {
            let start = Instant::now();
            for _ in 0..args.requests {
                self.call(self.request, 1).await?;
            }
            let seconds = start.elapsed().as_secs_f64();
            self.times.request.push(seconds / float(args.requests));
        }
        if !self.component.is_empty() {
            self.deploy(server).await?;
        }
        let short = self.seconds_beyond_compute(engine, 1).await?;
        let long = self
            .seconds_beyond_compute(engine, args.output_tokens)
            .await?;
        let tokens = float(args.output_tokens - 1);
        self.times.token.push((long - short) / tokens);
        Ok(())
    }

    /// Deploys the component, whose code is in the cache after the first time, and calls it.
    async fn deploy(&mut self, server: &DeployServer) -> Result<(), Error> {
        let deployed = server.deploy(NAME, ROUTE, Variant::Compiled, &self.component);
        self.times.deploy.push(deployed.await?.iter().sum());
        let start = Instant::now();
        let head = format!("POST {ROUTE}/none?count=1 HTTP/1.1\r\n");
        let response = exchange(server.public_address(), &head, b"").await?;
        self.times.first_request.push(start.elapsed().as_secs_f64());
        self.check(&response)?;
        server.remove(NAME).await
    }

    /// Seconds of a loop of this many tokens outside llama_decode.
    async fn seconds_beyond_compute(&self, engine: &Engine, tokens: u64) -> Result<f64, Error> {
        let computed = compute_seconds(engine).await?;
        let start = Instant::now();
        for _ in 0..LOOPS {
            self.call(self.operation, tokens).await?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let computed = compute_seconds(engine).await? - computed;
        Ok((seconds - computed) / float(LOOPS))
    }

    async fn call(&self, operation: &str, count: u64) -> Result<(), Error> {
        match &self.host {
            Host::Own(plugin) => {
                plugin_overhead::call(plugin, operation, count, PROMPT.to_owned()).await
            }
            Host::Wasmtime(program) => {
                let head = format!("POST /{operation}?count={count} HTTP/1.1\r\n");
                let response = exchange(program.address, &head, PROMPT.as_bytes()).await?;
                self.check(&response)
            }
        }
    }

    /// Refuses a response that is no success.
    fn check(&self, response: &str) -> Result<(), Error> {
        if response.starts_with("HTTP/1.1 200 ") {
            return Ok(());
        }
        let response: String = response.chars().take(800).collect();
        let name = self.name;
        Err(Error::failed(format!(
            "the plugin in {name} failed; its response: {response}"
        )))
    }

    /// The figures beside those of the form in Rust.
    fn report(&self, rust: &Self) -> Value {
        let ratio = |own: &[f64], rust: &[f64]| {
            let pairs = own.iter().zip(rust);
            median_min_max(&Vec::from_iter(pairs.map(|(own, rust)| own / rust)))
        };
        let (times, base) = (&self.times, &rust.times);
        let [token, min, max] = median_min_max(&times.token);
        let [token_ratio, ratio_min, ratio_max] = ratio(&times.token, &base.token);
        let mut row = json!({
            "form": self.name,
            "token_s": token,
            "token_min_s": min,
            "token_max_s": max,
            "token_ratio": token_ratio,
            "token_ratio_min": ratio_min,
            "token_ratio_max": ratio_max,
        });
        let median = |times: &Vec<f64>| median(times.iter().copied());
        if matches!(self.host, Host::Own(_)) {
            row["request_s"] = median(&times.request).into();
            row["request_ratio"] = ratio(&times.request, &base.request)[0].into();
        }
        if self.component.is_empty() {
            return row;
        }
        for (member, value) in [
            ("deploy_s", median(&times.deploy)),
            ("first_request_s", median(&times.first_request)),
            ("component_mb", float(self.component.len() as u64) / 1e6),
        ] {
            row[member] = value.into();
        }
        row
    }
}

/// Seconds inside llama_decode so far.
async fn compute_seconds(engine: &Engine) -> Result<f64, Error> {
    // The engine has counted the steps of all earlier commands.
    status(engine).await?;
    Ok(metric(engine, COMPUTE_SECONDS))
}
