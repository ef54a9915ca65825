//! `corral-bench http`: requests over loopback that a plugin answers without a model.
//!
//! It measures the path of a request: connection, route, new instance, response. The server runs in this process on
//! threads of its own, and one more thread is all clients. The same clients measure a peer in turns, servers whose component
//! has middleware, a server that sends traces, and one that writes its access log.

use crate::args::check_distinct;
use crate::cpu_clock::cpu_seconds;
use crate::local_server::{client_runtime, serve};
use crate::requests::get;
use crate::trace_collector::TraceCollector;
use clap::Args;
use corral_cli::args::whole;
use corral_cli::bench::MAX_SAMPLES;
use corral_cli::bench::connection::{Connection, closed_loop};
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, float, median, set_range};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::bench::url::Url;
use corral_cli::{Error, logs, startup};
use corral_engine::ModelPool;
use corral_runtime::{Limits, LinkedComponent, LinkedComponents};
use corral_server::{Server, Telemetry};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

#[derive(Args, Debug)]
pub(crate) struct HttpArgs {
    /// Component that answers without a model
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Path of the requests
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = path)]
    path: String,
    /// Middleware that passes requests on, also measured in turns: once and eight times before the component
    #[arg(long, value_name = "FILE")]
    middleware: Option<PathBuf>,
    /// Also measure, in turns, a server that sends a trace of each request to a collector of this process
    #[arg(long)]
    traces: bool,
    /// Also measure, in turns, a server that writes a line for each request to standard error
    #[arg(long)]
    pub(crate) access_log: bool,
    /// Server with the same component, http://HOST:PORT, measured in turns with Corral's
    #[arg(long, value_name = "URL")]
    peer: Option<Url>,
    /// Connections at once; each sends its next request after its response
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u64, 8, 64],
          value_parser = whole(1..=256))]
    connections: Vec<u64>,
    /// Requests of each turn
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = whole(1..=1_000_000))]
    requests: u64,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl HttpArgs {
    fn check(&self) -> Result<(), Error> {
        let turns = self
            .rounds
            .count
            .saturating_mul(self.connections.len() as u64);
        let requests = self.requests.saturating_mul(turns);
        if requests > MAX_SAMPLES {
            return Err(Error::usage(format!(
                "{requests} requests would be measured, and at most {MAX_SAMPLES} can be; \
                 lower --requests, --connections or --rounds"
            )));
        }
        check_distinct("--connections", &self.connections)
    }
}

fn path(text: &str) -> Result<String, String> {
    let path = text.parse::<http::uri::PathAndQuery>();
    match path {
        Ok(path) if text.starts_with('/') => Ok(path.to_string()),
        _ => Err("write a path that begins with '/'".to_owned()),
    }
}

const COLUMNS: [Column; 12] = [
    ("connections", "connections", Unit::Plain),
    ("server", "server", Unit::Plain),
    ("requests/s", "requests_per_second", Unit::Whole),
    ("min", "requests_per_second_min", Unit::Whole),
    ("max", "requests_per_second_max", Unit::Whole),
    ("p50", "p50_s", Unit::Microseconds),
    ("p99", "p99_s", Unit::Microseconds),
    ("max", "max_s", Unit::Microseconds),
    ("CPU µs each", "cpu_s", Unit::Microseconds),
    ("ratio to peer", "ratio", Unit::Thousandths),
    ("min ratio", "ratio_min", Unit::Thousandths),
    ("max ratio", "ratio_max", Unit::Thousandths),
];
/// The measured servers of this process: name, and number of middlewares before the component.
const CHAINS: [(&str, usize); 3] = [("corral", 0), ("1 before", 1), ("8 before", 8)];
/// The measured server of this process that sends traces.
const TRACED: &str = "traced";
/// The measured server of this process that writes its access log.
const LOGGED: &str = "logged";
/// Columns without those of the peer.
const OWN_COLUMNS: usize = 9;

/// A measured server.
struct Target {
    name: &'static str,
    url: Url,
    path: String,
    /// Whether it runs in this process, so that its CPU time is known.
    is_local: bool,
    /// Gets its traces.
    collector: Option<TraceCollector>,
}

/// A server with one number of connections, and its figures.
struct Row {
    target: Arc<Target>,
    connections: u64,
    /// Requests a second, and seconds of CPU time of a request, in each round.
    throughput: Vec<f64>,
    cpu: Vec<f64>,
    /// Seconds of each request.
    times: Quantiles,
    /// Bytes that the collector got in all rounds.
    traced_bytes: u64,
}

/// Measures and prints the figures.
pub(crate) fn measure(args: &HttpArgs) -> Result<(), Error> {
    args.check()?;
    let workers = startup::workers(None);
    let server_runtime = startup::tokio_runtime(workers)?;
    let clients = client_runtime()?;
    let mut servers = Vec::new();
    let mut targets = Vec::new();
    for (name, length) in CHAINS {
        if length > 0 && args.middleware.is_none() {
            continue;
        }
        let server = server_runtime.block_on(serve_chain(args, length, None))?;
        targets.push(local_target(name, &server, &args.path, None)?);
        servers.push(server);
    }
    if args.traces {
        let collector = TraceCollector::start()?;
        let serving = serve_chain(args, 0, Some(collector.telemetry()?));
        let server = server_runtime.block_on(serving)?;
        targets.push(local_target(TRACED, &server, &args.path, Some(collector))?);
        servers.push(server);
    }
    if args.access_log {
        let server = server_runtime.block_on(serve_chain(args, 0, None))?;
        targets.push(local_target(LOGGED, &server, &args.path, None)?);
        servers.push(server);
    }
    if let Some(peer) = &args.peer {
        targets.push(Arc::new(Target {
            name: "peer",
            url: peer.clone(),
            path: peer.join(&args.path),
            is_local: false,
            collector: None,
        }));
    }
    clients.block_on(probe(&targets))?;
    let mut rows = rows(&args.connections, &targets);
    let mut order: Vec<_> = (0..targets.len()).collect();
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        for rows in rows.chunks_mut(targets.len()) {
            for &at in &order {
                let turn = rows[at].turn(args.requests, round > 0);
                clients.block_on(turn)?;
            }
        }
        order.rotate_left(1);
    }
    for server in servers {
        server_runtime.block_on(server.stop(std::future::ready(())));
    }
    logs::flush();
    let reports: Vec<_> = rows.iter().map(|row| row.report(&rows)).collect();
    let rounds = rounds.measured();
    let setup = json!({
        "bench": "http",
        "path": args.path,
        "requests": args.requests,
        "rounds": rounds,
        "workers": workers,
        "peer": args.peer.as_ref().map(Url::to_string),
    });
    let title = format!(
        "{} requests for {} in a turn, keep-alive connections over loopback, {workers} workers; medians of {rounds} \
         rounds, times of all requests, µs",
        args.requests, args.path
    );
    let columns = match args.peer {
        Some(_) => COLUMNS.len(),
        None => OWN_COLUMNS,
    };
    table::print(args.json, setup, &title, &COLUMNS[..columns], &reports);
    Ok(())
}

/// A server with the component behind this many middlewares.
async fn serve_chain(
    args: &HttpArgs,
    length: usize,
    telemetry: Option<Arc<Telemetry>>,
) -> Result<Server, Error> {
    let models = ModelPool::loaded(Vec::new());
    let middleware = args.middleware.iter().map(|file| LinkedComponent {
        component: file.as_path().into(),
        inherit: false,
    });
    let linked = LinkedComponents {
        middleware: middleware.cycle().take(length).collect(),
        ..LinkedComponents::default()
    };
    let limits = Limits::default();
    serve(models, "/", &args.plugin, limits, linked, telemetry).await
}

fn local_target(
    name: &'static str,
    server: &Server,
    path: &str,
    collector: Option<TraceCollector>,
) -> Result<Arc<Target>, Error> {
    let url = format!("http://{}", server.public_address());
    let url = url.parse::<Url>().map_err(Error::failed)?;
    Ok(Arc::new(Target {
        name,
        path: url.join(path),
        url,
        is_local: true,
        collector,
    }))
}

/// A row for each number of connections and server.
fn rows(connections: &[u64], targets: &[Arc<Target>]) -> Vec<Row> {
    let row = |connections, target: &Arc<Target>| Row {
        target: Arc::clone(target),
        connections,
        throughput: Vec::new(),
        cpu: Vec::new(),
        times: Quantiles::default(),
        traced_bytes: 0,
    };
    let rows = connections
        .iter()
        .flat_map(|&connections| targets.iter().map(move |target| row(connections, target)));
    rows.collect()
}

/// Sends one request to each server; warns if the responses differ, since then the figures do not compare.
async fn probe(targets: &[Arc<Target>]) -> Result<(), Error> {
    let mut responses = Vec::new();
    for target in targets {
        let mut connection = Connection::new(&target.url);
        responses.push(get(&mut connection, &target.url, &target.path).await?);
    }
    if responses.windows(2).any(|pair| pair[0] != pair[1]) {
        eprintln!("the peer's response differs from Corral's; is it the same component?");
    }
    Ok(())
}

impl Target {
    /// CPU time of this process without this thread, which must be the clients', and without the collector's: the
    /// server's.
    fn cpu_seconds(&self) -> f64 {
        let collector = self
            .collector
            .as_ref()
            .map_or(0.0, TraceCollector::cpu_seconds);
        cpu_seconds(ClockId::ProcessCPUTime) - cpu_seconds(ClockId::ThreadCPUTime) - collector
    }

    fn traced_bytes(&self) -> u64 {
        self.collector.as_ref().map_or(0, TraceCollector::bytes)
    }
}

impl Row {
    /// Sends this many requests; records them if the round counts.
    async fn turn(&mut self, requests: u64, counts: bool) -> Result<(), Error> {
        let target = Arc::clone(&self.target);
        let ask = move |mut connection: Connection, _: u64| {
            let target = Arc::clone(&target);
            async move {
                // The first request of a connection opens it and is not measured.
                let is_open = connection.is_open();
                let start = Instant::now();
                get(&mut connection, &target.url, &target.path).await?;
                let time = is_open.then(|| start.elapsed().as_secs_f64());
                Ok::<_, Error>((connection, time))
            }
        };
        let clients = (0..self.connections).map(|_| Connection::new(&self.target.url));
        logs::set_access_log(self.target.name == LOGGED);
        let (cpu, start) = (self.target.cpu_seconds(), Instant::now());
        let bytes = self.target.traced_bytes();
        let times = closed_loop(clients, 0..requests, ask).await?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = self.target.cpu_seconds() - cpu;
        let bytes = self.target.traced_bytes() - bytes;
        if counts {
            self.throughput.push(float(requests) / seconds);
            self.times.extend(times.into_iter().flatten());
            if self.target.is_local {
                self.cpu.push(cpu / float(requests));
            }
            self.traced_bytes += bytes;
        }
        Ok(())
    }

    /// The figures, with ratios to the peer's row with as many connections.
    fn report(&self, all: &[Row]) -> Value {
        let mut row = json!({
            "connections": self.connections,
            "server": self.target.name,
            "p50_s": self.times.at(0.5),
            "p99_s": self.times.at(0.99),
            "max_s": self.times.at(1.0),
        });
        set_range(&mut row, "requests_per_second", &self.throughput);
        if self.target.is_local {
            row["cpu_s"] = median(self.cpu.iter().copied()).into();
        }
        if self.target.collector.is_some() {
            row["traced_bytes"] = self.traced_bytes.into();
        }
        let peer = all
            .iter()
            .find(|row| !row.target.is_local && row.connections == self.connections);
        if let Some(peer) = peer {
            let pairs = self.throughput.iter().zip(&peer.throughput);
            let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
            set_range(&mut row, "ratio", &ratios);
        }
        row
    }
}
