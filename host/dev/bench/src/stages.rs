//! `corral-bench stages`: the cost of each layer between llama.cpp and a client.
//!
//! The same requests pass through more and more of Corral: stage 0 is llama.cpp alone, stage 9 is events over TCP. Each
//! round runs every stage, and the ratio of a stage is its throughput to that of its raw loop in the same round. Stages
//! whose requests stay in step have stage 0 as their raw loop. From stage 3 on, clients send each request after the
//! response to the one before, and so they do in the raw loop. At the end of a round the raw loop runs again with the
//! arrivals that each of these stages had, to compare response times.
//!
//! CPU time is that of the process without compute threads, the engine's thread inside of llama_decode, and clients.

mod arrivals;
mod chart;
mod clients;
mod cpu_time;
mod engine;
mod http;
mod plugins;
mod prompts;
mod raw;
mod replay;
mod report;
mod send_cost;
mod services;
mod stage;

use crate::args::StagesArgs;
use crate::workload::{check_context, config, metric};
use clients::{Client, LoadResults, run_clients};
use corral_cli::bench::rounds::Rounds;
use corral_cli::bench::stats::median;
use corral_cli::bench::table;
use corral_cli::{Error, startup};
use corral_engine::testing::RawContext;
use corral_engine::{Engine, LoadError, PrefillPolicy};
use cpu_time::{CLIENT_THREAD, COMPUTE_THREAD, LoadOutcome, Measurement, in_thread};
use prompts::{Prompt, prompts};
use replay::{Length, Replay, uneven_lengths};
use report::{COLUMNS, StageRounds, rows};
use serde_json::{Value, json};
use services::Services;
use stage::{AFTER_RAW_LOOP, CLIENTS, EVENTS, RAW, Stage, choose};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Measures and prints the figures.
pub(crate) fn measure(args: &StagesArgs) -> Result<(), Error> {
    let stages = choose(&args.stages, args.plugins.is_some())?;
    let mut bench = Bench::start(args, &stages)?;
    let mut measured: Vec<_> = stages
        .iter()
        .map(|&stage| StageRounds {
            stage,
            own: Vec::new(),
            raw: Vec::new(),
            same_arrivals: Vec::new(),
        })
        .collect();
    let has_events = stages.iter().any(|stage| stage.number == EVENTS);
    let mut send_costs = Vec::new();
    let mut rounds = Rounds::with_warmup(args.common.rounds);
    for round in rounds.by_ref() {
        bench.round(&mut measured, round > 0)?;
        if has_events && round > 0 {
            send_costs.push(bench.send_cost()?);
        }
    }
    bench.shut_down();
    let send_cost = (!send_costs.is_empty()).then(|| median(send_costs));
    print(args, rounds.measured(), &rows(&measured), send_cost)
}

/// Prints the figures and draws the chart. `send_cost` is the system's CPU time per event in microseconds.
fn print(
    args: &StagesArgs,
    rounds: u64,
    rows: &[Value],
    send_cost: Option<f64>,
) -> Result<(), Error> {
    let model = args.common.model.file_name().unwrap_or_default();
    let model = model.to_string_lossy();
    let title = format!(
        "{model}: {} requests, {} at once, {} tokens in, {} out, greedy; medians of {rounds} rounds",
        args.requests, args.concurrency, args.prompt_tokens, args.output_tokens
    );
    if args.common.json {
        println!("{}", report(args, &model, rounds, rows, send_cost));
    } else {
        table::print(false, Value::Null, &title, &COLUMNS, rows);
        if let Some(send_cost) = send_cost {
            println!("stage 9: the system alone takes {send_cost:.1} µs to send an event");
        }
    }
    if let Some(file) = &args.chart {
        let svg = chart::svg(&title, rows).map_err(Error::Failed)?;
        std::fs::write(file, svg).map_err(Error::context(format!(
            "cannot write {}; give --chart a file in an existing directory",
            file.display()
        )))?;
    }
    Ok(())
}

fn report(
    args: &StagesArgs,
    model: &str,
    rounds: u64,
    rows: &[Value],
    send_cost: Option<f64>,
) -> Value {
    json!({
        "bench": "stages",
        "model": model,
        "requests": args.requests,
        "concurrency": args.concurrency,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
        "slot_order": args.slot_order,
        "send_us_per_event": send_cost,
        "stages": rows,
    })
}

/// What all stages share.
struct Bench {
    engine: Engine,
    /// A context beside the engine's, for the raw loops.
    raw: RawContext,
    prompts: Arc<[Prompt]>,
    output_tokens: u32,
    /// Output tokens of each request in stage 3.
    uneven_tokens: Arc<[u32]>,
    concurrency: usize,
    /// Threads for plugins and connections.
    workers: Runtime,
    /// One thread for all clients.
    clients: Runtime,
    services: Option<Services>,
}

impl Bench {
    fn start(args: &StagesArgs, stages: &[Stage]) -> Result<Self, Error> {
        let (prompt_tokens, output) = (args.prompt_tokens, args.output_tokens);
        let (requests, concurrency) = (to_usize(args.requests), to_usize(args.concurrency));
        let output_tokens = u32::try_from(output).unwrap_or(u32::MAX);
        let has_uneven = stages.iter().any(|stage| stage.number == CLIENTS);
        let max_output = match has_uneven {
            true => output + output / 2 + 1,
            false => output,
        };
        let cells = args.concurrency * (prompt_tokens + max_output);
        let mut config = config(&args.common, args.threads, cells)?;
        // A plugin's loop continues the cached sequence. After a request the cache is cleared, so that attention covers
        // no more cells than in the raw loops.
        config.prefix_cache = true;
        if args.slot_order {
            config.prefill = PrefillPolicy::Unbudgeted;
        }
        // Compute threads inherit the name of the thread that creates them.
        let loaded = in_thread(COMPUTE_THREAD, || -> Result<_, LoadError> {
            let engine = Engine::load(config)?;
            let raw = engine.raw_context()?;
            Ok((engine, raw))
        })?;
        let (engine, raw) = loaded?;
        let context = engine.info().context;
        let others = prompt_tokens + (max_output - output);
        check_context(context, "--output-tokens", output, others)?;
        let prompts = prompts(&engine, requests, to_usize(prompt_tokens))?;
        let workers = startup::tokio_runtime(startup::workers(None))?;
        let services = match &args.plugins {
            Some(dir) => Some(workers.block_on(Services::start(&engine, dir, stages))?),
            None => None,
        };
        let clients = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(CLIENT_THREAD)
            .enable_all()
            .build()
            .map_err(Error::context("cannot start the clients' thread"))?;
        Ok(Self {
            engine,
            raw,
            prompts: prompts.into(),
            output_tokens,
            uneven_tokens: uneven_lengths(output_tokens, requests).into(),
            concurrency,
            workers,
            clients,
            services,
        })
    }

    /// Runs each stage once; records the figures if the round counts.
    fn round(&mut self, stages: &mut [StageRounds], counts: bool) -> Result<(), Error> {
        let (mut in_step, mut with_clients): (Option<Measurement>, Option<Measurement>) =
            (None, None);
        for stage in stages.iter_mut() {
            let (own, raw) = match stage.stage.number {
                RAW => {
                    let own = self.raw_in_step()?;
                    (own.clone(), in_step.insert(own).clone())
                }
                number if number < CLIENTS => {
                    let raw = match &in_step {
                        Some(raw) => raw.clone(),
                        None => in_step.insert(self.raw_in_step()?).clone(),
                    };
                    (self.run_stage(stage.stage)?, raw)
                }
                CLIENTS => {
                    let raw = self.raw_with_clients(&self.uneven_tokens.clone())?;
                    (self.run_stage(stage.stage)?, raw)
                }
                number => {
                    let raw = match &with_clients {
                        Some(raw) if !AFTER_RAW_LOOP.contains(&number) => raw.clone(),
                        _ => {
                            let raw = self.raw_with_clients(&self.equal_tokens())?;
                            with_clients.insert(raw).clone()
                        }
                    };
                    (self.run_stage(stage.stage)?, raw)
                }
            };
            if counts {
                stage.own.push(own);
                stage.raw.push(raw);
            }
        }
        // Last, so that a stage and its raw loop are close in time.
        let client_stages = stages
            .iter_mut()
            .filter(|stage| stage.stage.number >= CLIENTS);
        for stage in client_stages.filter(|_| counts) {
            if let Some(own) = stage.own.last() {
                let same = self.raw_with_arrivals(stage.stage, own)?;
                stage.same_arrivals.push(same);
            }
        }
        Ok(())
    }

    /// As many output tokens for each request.
    fn equal_tokens(&self) -> Arc<[u32]> {
        vec![self.output_tokens; self.prompts.len()].into()
    }

    /// Runs stage 0.
    fn raw_in_step(&mut self) -> Result<Measurement, Error> {
        let replay = self.replay(&self.equal_tokens(), true);
        raw::measure(&mut self.raw, replay, &self.prompts)
    }

    fn raw_with_clients(&mut self, output_tokens: &Arc<[u32]>) -> Result<Measurement, Error> {
        let replay = self.replay(output_tokens, false);
        let clients = (&self.clients, self.concurrency);
        raw::measure_clients(&mut self.raw, replay, &self.prompts, clients, output_tokens)
    }

    /// The system's CPU time to send an event, in microseconds, measured with a part of the requests.
    fn send_cost(&mut self) -> Result<f64, Error> {
        let some = self.prompts.chunks(self.concurrency).next().unwrap_or(&[]);
        let replay = self.replay(&vec![self.output_tokens; some.len()], true);
        let clients = (&self.clients, self.concurrency);
        send_cost::measure(&mut self.raw, replay, some, clients)
    }

    /// Runs the raw loop with the arrivals of a stage.
    fn raw_with_arrivals(&mut self, stage: Stage, own: &Measurement) -> Result<Measurement, Error> {
        let output_tokens = match stage.number {
            CLIENTS => self.uneven_tokens.clone(),
            _ => self.equal_tokens(),
        };
        let replay = self.replay(&output_tokens, false);
        raw::measure_arrivals(&mut self.raw, replay, &self.prompts, &own.spans)
    }

    fn replay(&self, output_tokens: &[u32], in_step: bool) -> Replay {
        let length = |(prompt, &output): (&Prompt, &u32)| Length {
            prompt: u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX),
            output,
        };
        let requests = self.prompts.iter().zip(output_tokens).map(length);
        let step_tokens = self.raw.step_tokens();
        Replay::new(requests.collect(), self.concurrency, step_tokens, in_step)
    }

    /// Runs a stage above stage 0.
    fn run_stage(&self, stage: Stage) -> Result<Measurement, Error> {
        let tokens = u64::from(self.output_tokens);
        match stage.number {
            1 | 2 => {
                let fixed = (stage.number == 1).then(|| engine::silent_token(&self.engine));
                let (engine, prompts) = (self.engine.clone(), self.prompts.clone());
                let concurrency = self.concurrency;
                self.measure_load(async move {
                    let tokens =
                        engine::run_in_step(&engine, &prompts, concurrency, tokens, fixed).await?;
                    let spans = Vec::new();
                    Ok(LoadResults { tokens, spans })
                })
            }
            CLIENTS => self.measure_clients(self.repeat(|| engine::UnevenClient {
                engine: self.engine.clone(),
                prompts: self.prompts.clone(),
                output_tokens: self.uneven_tokens.clone(),
            })),
            4..=6 => {
                let plugin = self.services()?.measure()?;
                let operation = match stage.number {
                    4 => "generate",
                    5 => "top",
                    _ => "logits",
                };
                self.measure_clients(self.repeat(|| plugins::PluginClient {
                    engine: self.engine.clone(),
                    plugin: plugin.clone(),
                    workers: self.workers.handle().clone(),
                    operation,
                    prompts: self.prompts.clone(),
                    tokens,
                }))
            }
            _ => {
                let (over_tcp, streams) = (stage.number > 7, stage.number > 8);
                let requests = http::Requests {
                    engine: self.engine.clone(),
                    prompts: self.prompts.clone(),
                    tokens,
                };
                let server = self.services()?.server();
                let connecting =
                    http::connect(server, self.concurrency, over_tcp, streams, &requests);
                self.measure_clients(self.clients.block_on(connecting)?)
            }
        }
    }

    fn services(&self) -> Result<&Services, Error> {
        let missing = || Error::usage("this stage needs --plugins DIR");
        self.services.as_ref().ok_or_else(missing)
    }

    /// A client for each concurrent request.
    fn repeat<C>(&self, client: impl Fn() -> C) -> Vec<C> {
        (0..self.concurrency).map(|_| client()).collect()
    }

    fn measure_clients<C: Client>(&self, clients: Vec<C>) -> Result<Measurement, Error> {
        self.measure_load(run_clients(clients, self.prompts.len()))
    }

    /// Runs and measures a load on the clients' thread.
    fn measure_load(
        &self,
        load: impl Future<Output = Result<LoadResults, Error>> + Send + 'static,
    ) -> Result<Measurement, Error> {
        let read = || {
            let cpu = metric(&self.engine, "corral_engine_compute_cpu_seconds_total");
            let steps = metric(&self.engine, "corral_engine_steps_total");
            (cpu, steps)
        };
        cpu_time::measure(|| -> Result<LoadOutcome, Error> {
            let (cpu_before, steps_before) = read();
            // This thread is not a client's: spawn the load instead of running it here.
            let running = self.clients.spawn(load);
            let results = self.clients.block_on(running);
            let results = results.map_err(Error::context("the clients crashed"))??;
            let (cpu, steps) = read();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let steps = (steps - steps_before) as u64;
            Ok(LoadOutcome {
                results,
                steps,
                decode_cpu: cpu - cpu_before,
            })
        })
    }

    fn shut_down(self) {
        self.clients.shutdown_background();
        self.workers.shutdown_background();
        drop(self.raw);
        self.engine.shutdown();
    }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Bench as BenchArgs;
    use crate::args::tests::parse;

    #[test]
    fn report_contains_arguments_and_stages() {
        let bench = parse("stages --model a/model.gguf --stages 0,2");
        let Ok(BenchArgs::Stages(args)) = bench else {
            panic!("not stages: {bench:?}");
        };
        assert_eq!(args.stages, [0, 2]);
        let rows = [json!({"stage": 0})];
        let report = report(&args, "model.gguf", 5, &rows, Some(7.5));
        assert_eq!(report["send_us_per_event"], 7.5);
        assert_eq!(report["model"], "model.gguf");
        for (key, number) in [
            ("requests", 40),
            ("concurrency", 8),
            ("prompt_tokens", 32),
            ("output_tokens", 50),
            ("rounds", 5),
        ] {
            assert_eq!(report[key], number, "{key}");
        }
        assert_eq!(report["stages"], json!([{"stage": 0}]));
    }
}
