//! `corral-bench stages`: the cost of each layer between llama.cpp and a client.
//!
//! The same requests pass through more and more of Corral: stage 0 is llama.cpp alone, stage 9 is events over TCP. Each
//! round runs every stage, and the ratio of a stage is its throughput to that of its raw loop in the same round. Stages
//! whose requests stay in step have stage 0 as their raw loop. From stage 3 on, clients send each request after the
//! response to the one before, and so they do in the raw loop.
//!
//! CPU time is that of the process without compute threads, the engine's thread inside of llama_decode, and clients.

mod clients;
mod cpu_time;
mod engine;
mod http;
mod plugins;
mod prompts;
mod raw_loops;
mod report;
mod services;
mod slot_schedule;
mod stage;

use crate::args::EngineArgs;
use crate::workload::{check_context, config, metric};
use clap::Args;
use clients::{Client, run_clients};
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::table;
use corral_cli::{Error, startup};
use corral_engine::Engine;
use corral_engine::testing::BenchmarkContext;
use cpu_time::{CLIENT_THREAD, LoadOutcome, Measurement};
use prompts::{Prompt, prompts};
use report::{COLUMNS, StageRounds, rows};
use serde_json::json;
use services::Services;
use slot_schedule::{Length, SlotSchedule, uneven_lengths};
use stage::{AFTER_RAW_LOOP, CLIENTS, RAW, Stage, choose};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Runtime;

#[derive(Args, Debug)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Requests of each stage in a round
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=3000))]
    requests: u64,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=256))]
    concurrency: u64,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(4..=2000))]
    prompt_tokens: u64,
    /// Tokens that each request generates
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(2..=2000))]
    output_tokens: u64,
    /// Stages by number, besides stage 0 [default: all, or 0 to 3 without --plugins]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=9))]
    stages: Vec<u8>,
    /// Directory with measure.wasm, generate.wasm and openai.wasm, for stages 4 to 9
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
}

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
        })
        .collect();
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        bench.round(&mut measured, round > 0)?;
    }
    bench.shut_down();
    let model = args.engine.model.file_name().unwrap_or_default();
    let (model, rounds) = (model.to_string_lossy(), rounds.measured());
    let title = format!(
        "{model}: {} requests, {} at once, {} tokens in, {} out, greedy; medians of {rounds} rounds",
        args.requests, args.concurrency, args.prompt_tokens, args.output_tokens
    );
    let setup = json!({
        "bench": "stages",
        "model": model,
        "requests": args.requests,
        "concurrency": args.concurrency,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
    });
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows(&measured));
    Ok(())
}

/// What all stages share.
struct Bench {
    engine: Engine,
    /// A context beside the engine's, for the raw loops.
    raw: BenchmarkContext,
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
        let mut config = config(&args.engine, cells)?;
        // A plugin's loop continues the cached sequence. After a request the cache is cleared, so that attention covers
        // no more cells than in the raw loops.
        config.prefix_cache = true;
        let running = u16::try_from(concurrency).unwrap_or(u16::MAX);
        config.max_running = config.max_running.max(running);
        let engine = Engine::load(config)?;
        let raw = engine.benchmark_context()?;
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
                    (own, *in_step.insert(own))
                }
                number if number < CLIENTS => {
                    let raw = match in_step {
                        Some(raw) => raw,
                        None => *in_step.insert(self.raw_in_step()?),
                    };
                    (self.run_stage(stage.stage)?, raw)
                }
                CLIENTS => {
                    let raw = self.raw_with_clients(&self.uneven_tokens.clone())?;
                    (self.run_stage(stage.stage)?, raw)
                }
                number => {
                    let raw = match with_clients {
                        Some(raw) if !AFTER_RAW_LOOP.contains(&number) => raw,
                        _ => *with_clients.insert(self.raw_with_clients(&self.equal_tokens())?),
                    };
                    (self.run_stage(stage.stage)?, raw)
                }
            };
            if counts {
                stage.own.push(own);
                stage.raw.push(raw);
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
        let schedule = self.schedule(&self.equal_tokens(), true);
        raw_loops::measure(&mut self.raw, schedule, &self.prompts)
    }

    fn raw_with_clients(&mut self, output_tokens: &Arc<[u32]>) -> Result<Measurement, Error> {
        let schedule = self.schedule(output_tokens, false);
        let clients = (&self.clients, self.concurrency);
        raw_loops::measure_clients(
            &mut self.raw,
            schedule,
            &self.prompts,
            clients,
            output_tokens,
        )
    }

    fn schedule(&self, output_tokens: &[u32], in_step: bool) -> SlotSchedule {
        let length = |(prompt, &output): (&Prompt, &u32)| Length {
            prompt: u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX),
            output,
        };
        let requests = self.prompts.iter().zip(output_tokens).map(length);
        let step_tokens = self.raw.step_tokens();
        SlotSchedule::new(requests.collect(), self.concurrency, step_tokens, in_step)
    }

    /// Runs a stage above stage 0.
    fn run_stage(&self, stage: Stage) -> Result<Measurement, Error> {
        let tokens = u64::from(self.output_tokens);
        match stage.number {
            1 | 2 => {
                let fixed = (stage.number == 1).then(|| engine::textless_token(&self.engine));
                let (engine, prompts) = (self.engine.clone(), self.prompts.clone());
                let concurrency = self.concurrency;
                self.measure_load(async move {
                    engine::run_in_step(&engine, &prompts, concurrency, tokens, fixed).await
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
        load: impl Future<Output = Result<u64, Error>> + Send + 'static,
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
            let tokens = self.clients.block_on(running);
            let tokens = tokens.map_err(Error::context("the clients crashed"))??;
            let (cpu, steps) = read();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let steps = (steps - steps_before) as u64;
            Ok(LoadOutcome {
                tokens,
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
