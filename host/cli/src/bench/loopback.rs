//! `corral bench http`: requests over loopback that a plugin answers without a model.
//!
//! What is measured is the way of a request: connection, route, a new instance of the plugin, its answer. The
//! server is in this process, on threads of its own, and one thread more stands for all clients. A peer with
//! the same component is asked by the same clients in turns with it, so ratios are of the same moment.

use super::connection::{Connection, closed};
use super::http::serve;
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{clients, float, median, median_and_ends, quantile};
use crate::admin::harmless;
use crate::arguments::{HttpBench, Url};
use crate::complaint::Complaint;
use crate::house;
use bytes::Bytes;
use corral_engine::Models;
use corral_runtime::Limits;
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt, Full, Limited};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of an answer.
const MOST: usize = 64 << 20;

const COLUMNS: [Column; 12] = [
    ("connections", "connections", Unit::Plain),
    ("server", "server", Unit::Plain),
    ("requests/s", "requests_per_second", Unit::Whole),
    ("least", "least", Unit::Whole),
    ("most", "most", Unit::Whole),
    ("p50", "p50_s", Unit::Microseconds),
    ("p99", "p99_s", Unit::Microseconds),
    ("longest", "max_s", Unit::Microseconds),
    ("CPU µs each", "cpu_s", Unit::Microseconds),
    ("ratio to peer", "ratio", Unit::Thousandths),
    ("least ratio", "ratio_least", Unit::Thousandths),
    ("most ratio", "ratio_most", Unit::Thousandths),
];

/// Who answers, and at which path.
struct Asked {
    name: &'static str,
    url: Url,
    path: String,
    /// Whether it is this process, whose processor time is known.
    own: bool,
}

/// One server with one number of connections, and what was found.
struct Row {
    asked: Arc<Asked>,
    connections: u64,
    /// Of each round: requests a second, and seconds of processor time for one.
    speeds: Vec<f64>,
    cpu: Vec<f64>,
    /// Seconds of each request.
    times: Vec<f64>,
}

/// Measures and prints.
pub(super) fn measure(arguments: &HttpBench) -> Result<(), Complaint> {
    let threads = house::tokio_runtime(house::workers(arguments.workers))?;
    let clients = clients()?;
    let serving = serve(
        Models::loaded(Vec::new()),
        "/",
        &arguments.plugin,
        Limits::default(),
    );
    let server = threads.block_on(serving)?;
    let own = format!("http://{}", server.public_address());
    let own = own
        .parse::<Url>()
        .map_err(|problem| Complaint::Failed(problem.into()))?;
    let mut servers = vec![asked("corral", &own, &arguments.path, true)];
    if let Some(peer) = &arguments.vs {
        servers.push(asked("peer", peer, &arguments.path, false));
    }
    clients.block_on(look(&servers))?;
    let mut rows = rows(&arguments.connections, &servers);
    // Who begins finds the machine as the round before left it: each in its turn.
    let mut order: Vec<_> = (0..servers.len()).collect();
    let mut rounds = Rounds::after_one(arguments.rounds);
    for round in rounds.by_ref() {
        for at_once in rows.chunks_mut(servers.len()) {
            for &at in &order {
                // The first one warms up.
                let turn = at_once[at].turn(arguments.requests, round > 0);
                clients.block_on(turn)?;
            }
        }
        order.rotate_left(1);
    }
    threads.block_on(server.stop(std::future::ready(())));
    let found: Vec<_> = rows.iter().map(|row| row.report(&rows)).collect();
    let rounds = rounds.measured();
    let workers = house::workers(arguments.workers);
    let setup = json!({
        "bench": "http",
        "path": arguments.path,
        "requests": arguments.requests,
        "rounds": rounds,
        "workers": workers,
        "peer": arguments.vs.as_ref().map(Url::to_string),
    });
    let title = format!(
        "{} requests for {} in a turn, kept-alive connections over loopback, {workers} workers; medians of {rounds} \
         rounds, times of all requests, µs",
        arguments.requests, arguments.path
    );
    // Without a peer there is nothing to compare with.
    let shown = match arguments.vs {
        Some(_) => COLUMNS.len(),
        None => 9,
    };
    tell(arguments.json, setup, &title, &COLUMNS[..shown], &found);
    Ok(())
}

fn asked(name: &'static str, url: &Url, path: &str, own: bool) -> Arc<Asked> {
    Arc::new(Asked {
        name,
        url: url.clone(),
        path: url.below(path),
        own,
    })
}

/// A row for each number of connections and server.
fn rows(connections: &[u64], servers: &[Arc<Asked>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &connections in connections {
        for asked in servers {
            rows.push(Row {
                asked: Arc::clone(asked),
                connections,
                speeds: Vec::new(),
                cpu: Vec::new(),
                times: Vec::new(),
            });
        }
    }
    rows
}

/// Asks everyone once; says where they answer differently, since then they are not to be compared.
async fn look(servers: &[Arc<Asked>]) -> Result<(), Complaint> {
    let mut answers = Vec::new();
    for asked in servers {
        let mut connection = Connection::new(&asked.url);
        answers.push(asked.get(&mut connection).await?);
    }
    if answers.windows(2).any(|pair| pair[0] != pair[1]) {
        eprintln!("the peer's answer is not the same as Corral's; is it the same component?");
    }
    Ok(())
}

impl Asked {
    /// One request; the answer has to be a success.
    async fn get(&self, connection: &mut Connection) -> Result<Bytes, Complaint> {
        let request = Request::get(&self.path)
            .header(HOST, &self.url.authority)
            .body(Full::new(Bytes::new()))?;
        let url = &self.url;
        let answer = connection.send(request).await.map_err(|trouble| {
            let text =
                format!("{url} gave no answer ({trouble}); start the server, or name another URL");
            Complaint::telling(&text)(trouble)
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST).collect().await;
        let body = body
            .map_err(Complaint::telling(&format!("an answer of {url} broke off")))?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let said: String = String::from_utf8_lossy(&body).chars().take(400).collect();
        let text = format!(
            "{} answered with {status} at {}: {}; is there a component that needs no model?",
            self.name,
            self.path,
            harmless(&said)
        );
        Err(Complaint::Failed(text.into()))
    }
}

impl Row {
    /// So many requests; taken note of if they count.
    async fn turn(&mut self, requests: u64, counts: bool) -> Result<(), Complaint> {
        let asked = Arc::clone(&self.asked);
        let ask = move |mut connection: Connection, _: u64| {
            let asked = Arc::clone(&asked);
            async move {
                // The first request of a connection makes it, which is not what is measured.
                let is_open = connection.is_open();
                let began = Instant::now();
                let answer = asked.get(&mut connection).await;
                let took = answer.map(|_| is_open.then(|| began.elapsed().as_secs_f64()));
                (connection, took)
            }
        };
        let (spent, began) = (server_seconds(), Instant::now());
        let times = closed(&self.asked.url, self.connections, 0..requests, ask).await?;
        let (spent, seconds) = (server_seconds() - spent, began.elapsed().as_secs_f64());
        let times = times.into_iter().collect::<Result<Vec<_>, Complaint>>()?;
        if counts {
            self.speeds.push(float(requests) / seconds);
            self.times.extend(times.into_iter().flatten());
            if self.asked.own {
                self.cpu.push(spent / float(requests));
            }
        }
        Ok(())
    }

    /// Beside the peer's row with as many connections.
    fn report(&self, all: &[Row]) -> Value {
        let [speed, least, most] = median_and_ends(&self.speeds);
        let mut times = self.times.clone();
        let mut row = json!({
            "connections": self.connections,
            "server": self.asked.name,
            "requests_per_second": speed,
            "least": least,
            "most": most,
            "p50_s": quantile(&mut times, 0.5),
            "p99_s": quantile(&mut times, 0.99),
            "max_s": quantile(&mut times, 1.0),
        });
        if self.asked.own {
            row["cpu_s"] = median(self.cpu.iter().copied()).into();
        }
        let peer = all
            .iter()
            .find(|row| !row.asked.own && row.connections == self.connections);
        if let Some(peer) = peer {
            let pairs = self.speeds.iter().zip(&peer.speeds);
            let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
            let [ratio, least, most] = median_and_ends(&ratios);
            row["ratio"] = ratio.into();
            row["ratio_least"] = least.into();
            row["ratio_most"] = most.into();
        }
        row
    }
}

/// Processor time of this process but for this thread, which is the clients': the server's. It has to be called
/// on the clients' thread.
fn server_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime) - seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    float(seconds) + 1e-9 * float(nanos)
}
