//! `corral bench threads`: how many threads should compute, and how many should do the rest.
//!
//! Every thread that computes takes a core from the workers, which deliver tokens, run plugins and
//! turn connections; and where a core is taken away from one of them, all others wait for it at the
//! next barrier of the computation. Streams are read from the engine, by tasks on the workers, and
//! through HTTP, by one thread more that stands for all clients.

use super::load::{check_room, config, generate, metric, prompt};
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{clients, http, median, median_and_ends};
use crate::arguments::ThreadsBench;
use crate::complaint::Complaint;
use crate::house;
use corral_engine::Engine;
use corral_server::Server;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Tokens of each prompt; through HTTP it is a text, which has no more of them.
const PROMPT: u64 = 32;
/// Most threads of a kind that are tried: more would take too long, and say no more.
const MOST: usize = 4;

/// One setting, one way of reading streams, and what was found.
struct Row {
    threads: usize,
    workers: usize,
    engine: Engine,
    tokio: Runtime,
    /// What to ask through HTTP; nothing if the engine is asked.
    server: Option<Server>,
    /// Tokens per second of all sequences together, in each round.
    speeds: Vec<f64>,
    /// Seconds in steps, and in sampling and delivery after them.
    step: f64,
    sample: f64,
}

const COLUMNS: [Column; 8] = [
    ("compute threads", "threads", Unit::Plain),
    ("workers", "workers", Unit::Plain),
    ("read from", "read_from", Unit::Plain),
    ("tok/s", "tokens_per_second", Unit::Whole),
    ("slowest", "slowest", Unit::Whole),
    ("fastest", "fastest", Unit::Whole),
    ("ratio to default", "ratio_to_default", Unit::Ratio),
    (
        "sampling and delivery",
        "sampling_and_delivery_share",
        Unit::Percent,
    ),
];

/// Measures and prints.
pub(super) fn measure(arguments: &ThreadsBench) -> Result<(), Complaint> {
    let cores = house::cores();
    let default = (cores, house::workers(None));
    let most = cores.min(MOST);
    let mut settings: Vec<_> = (1..=most)
        .flat_map(|threads| (1..=most).map(move |workers| (threads, workers)))
        .collect();
    if !settings.contains(&default) {
        settings.push(default);
    }
    let clients = clients()?;
    let mut rows = rows(arguments, &settings)?;
    let mut rounds = Rounds::after_one(arguments.measuring.rounds);
    for round in rounds.by_ref() {
        for row in &mut rows {
            row.round(arguments, &clients, round > 0)?;
        }
    }
    let rounds = rounds.measured();
    let found: Vec<_> = rows.iter().map(|row| row.report(&rows, default)).collect();
    for row in rows {
        row.tokio.shutdown_background();
        row.engine.shutdown();
    }
    let setup = json!({
        "bench": "threads",
        "cores": cores,
        "streams": arguments.streams,
        "generate": arguments.generate,
        "rounds": rounds,
        "default": {"threads": default.0, "workers": default.1},
    });
    let title = format!(
        "{} sequences, {} tokens each, greedy; medians of {rounds} rounds on {cores} cores; at most {MOST} \
         threads of a kind are tried; default: {} compute, {} workers",
        arguments.streams, arguments.generate, default.0, default.1
    );
    tell(arguments.measuring.json, setup, &title, &COLUMNS, &found);
    Ok(())
}

/// A row for each setting and way of reading, with one engine for each number of compute threads.
fn rows(arguments: &ThreadsBench, settings: &[(usize, usize)]) -> Result<Vec<Row>, Complaint> {
    let cells = arguments.streams * (PROMPT + arguments.generate);
    let mut rows: Vec<Row> = Vec::new();
    for &(threads, workers) in settings {
        let engine = match rows.iter().find(|row| row.threads == threads) {
            Some(row) => row.engine.clone(),
            None => {
                let compute = u32::try_from(threads).ok();
                let measuring = &arguments.measuring;
                let config = config(measuring, compute, cells)?;
                let engine = Engine::load(config)?;
                let context = engine.info().context;
                check_room(context, "--generate", arguments.generate, PROMPT)?;
                engine
            }
        };
        let http = arguments.plugin.as_deref().map(Some);
        for plugin in [None].into_iter().chain(http) {
            let tokio = house::tokio_runtime(workers)?;
            let server = plugin
                .map(|plugin| tokio.block_on(http::start(&engine, plugin)))
                .transpose()?;
            rows.push(Row {
                threads,
                workers,
                engine: engine.clone(),
                tokio,
                server,
                speeds: Vec::new(),
                step: 0.0,
                sample: 0.0,
            });
        }
    }
    Ok(rows)
}

impl Row {
    /// Lets all sequences generate once; it is taken note of if it `counts`.
    fn round(
        &mut self,
        arguments: &ThreadsBench,
        clients: &Runtime,
        counts: bool,
    ) -> Result<(), Complaint> {
        let spent = |name| metric(&self.engine, &format!("corral_engine_{name}_seconds_total"));
        let (step, sample) = (spent("compute"), spent("sampling"));
        let (tokens, address) = (
            arguments.generate,
            self.server.as_ref().map(Server::public_address),
        );
        let began = Instant::now();
        let all = async {
            let mut streams = JoinSet::new();
            for number in 0..arguments.streams {
                let engine = self.engine.clone();
                streams.spawn(async move {
                    match address {
                        Some(address) => {
                            // Digits, one less than tokens: some models put one before a text.
                            let prompt = format!("{number:031}");
                            http::stream(address, &prompt, tokens).await
                        }
                        None => {
                            let prompt = prompt(&engine, number, PROMPT);
                            Ok(generate(&engine, prompt, tokens).await.map(drop)?)
                        }
                    }
                });
            }
            while let Some(read) = streams.join_next().await {
                read.map_err(Complaint::telling("a stream crashed"))??;
            }
            Ok::<_, Complaint>(())
        };
        match address {
            Some(_) => clients.block_on(all)?,
            None => self.tokio.block_on(all)?,
        }
        if counts {
            #[allow(clippy::cast_precision_loss)]
            let tokens = (arguments.streams * tokens) as f64;
            let speed = tokens / began.elapsed().as_secs_f64();
            let (step, sample) = (spent("compute") - step, spent("sampling") - sample);
            self.speeds.push(speed);
            self.step += step;
            self.sample += sample;
        }
        Ok(())
    }

    /// Beside the row among `all` that has the `default` numbers and is read in the same way.
    fn report(&self, all: &[Row], default: (usize, usize)) -> Value {
        let beside = all.iter().find(|row| {
            (row.threads, row.workers) == default && row.server.is_some() == self.server.is_some()
        });
        let ratios = beside.iter().flat_map(|row| {
            let pairs = self.speeds.iter().zip(&row.speeds);
            pairs.map(|(speed, default)| speed / default)
        });
        let [speed, slowest, fastest] = median_and_ends(&self.speeds);
        json!({
            "threads": self.threads,
            "workers": self.workers,
            "read_from": if self.server.is_some() { "HTTP" } else { "engine" },
            "tokens_per_second": speed,
            "slowest": slowest,
            "fastest": fastest,
            "ratio_to_default": median(ratios),
            "sampling_and_delivery_share": self.sample / (self.step + self.sample),
        })
    }
}
