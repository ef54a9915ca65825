//! `corral bench stages`: what each layer between llama.cpp and a client costs.
//!
//! The same requests go through ever more of Corral: stage 0 is llama.cpp alone, the last one events over TCP.
//! In each round every stage has its turn, and a stage's ratio is its speed by that of its raw loop in the same
//! round. Stages in which requests stay in step have stage 0 for that. From stage 3 on clients ask, each of them
//! again as soon as it was answered, and so others ask a raw loop. At the end of a round the raw loop is given the
//! arrivals that each of these stages had, for how long the single answers take.
//!
//! Processor time is what the process took beside llama.cpp: without compute threads, without what the engine's
//! thread spends inside of llama_decode, and without the threads that stand for clients.

mod chart;
mod clients;
mod engine;
mod events;
mod floor;
mod house;
mod http;
mod plugins;
mod processor;
mod prompts;
mod raw;
mod replay;
mod report;
mod stage;
mod visits;

use self::http::Questions;
use super::load::{check_room, config, metric};
use super::median;
use super::rounds::Rounds;
use super::table::tell;
use crate::arguments::StagesBench;
use crate::complaint::Complaint;
use clients::{Answered, Client, ask_all};
use corral_engine::{Engine, LoadError, PrefillPolicy, Raw};
use house::House;
use processor::{CLIENTS, COMPUTE, Done, Took, in_thread, timed};
use prompts::{Prompt, prompts};
use replay::{Length, Replay, uneven};
use report::{COLUMNS, Found, rows};
use serde_json::{Value, json};
use stage::{AGAIN, AGAIN_TOO, ARRIVALS, EVENTS, RAW, Stage, chosen};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Measures and prints.
pub(super) fn measure(arguments: &StagesBench) -> Result<(), Complaint> {
    let stages = chosen(&arguments.stages, arguments.plugins.is_some())?;
    let mut bench = Bench::set_up(arguments, &stages)?;
    let mut found: Vec<_> = stages
        .iter()
        .map(|&stage| Found {
            stage,
            turns: Vec::new(),
            twins: Vec::new(),
            same_arrivals: Vec::new(),
        })
        .collect();
    let mut rounds = Rounds::after_one(arguments.measuring.rounds);
    let (streams, mut floors) = (stages.iter().any(|one| one.number == EVENTS), Vec::new());
    for round in rounds.by_ref() {
        bench.round(&mut found, round > 0)?;
        if streams && round > 0 {
            floors.push(bench.floor()?);
        }
    }
    bench.shut_down();
    let floor = (!floors.is_empty()).then(|| median(floors.into_iter()));
    tell_all(arguments, rounds.measured(), &rows(&found), floor)
}

/// `floor` is what the system takes to send an event, in microseconds; none if no stage sends any.
fn tell_all(
    arguments: &StagesBench,
    rounds: u64,
    rows: &[Value],
    floor: Option<f64>,
) -> Result<(), Complaint> {
    let measuring = &arguments.measuring;
    let model = measuring.model.file_name().unwrap_or_default();
    let model = model.to_string_lossy();
    let title = format!(
        "{model}: {} requests, {} at once, {} tokens in, {} out, greedy; medians of {rounds} rounds",
        arguments.requests, arguments.concurrency, arguments.prompt, arguments.generate
    );
    if measuring.json {
        println!("{}", report(arguments, &model, rounds, rows, floor));
    } else {
        tell(false, Value::Null, &title, &COLUMNS, rows);
        if let Some(floor) = floor {
            println!(
                "stage 9: an event takes the system {floor:.1} µs to send, by a raw loop that does nothing else with its tokens"
            );
        }
    }
    if let Some(file) = &arguments.chart {
        let drawn = chart::svg(&title, rows).map_err(Complaint::Failed)?;
        let failed = format!(
            "{} could not be written; give --chart a file in a folder that is there",
            file.display()
        );
        std::fs::write(file, drawn).map_err(Complaint::telling(&failed))?;
    }
    Ok(())
}

/// What programs are told.
fn report(
    arguments: &StagesBench,
    model: &str,
    rounds: u64,
    rows: &[Value],
    floor: Option<f64>,
) -> Value {
    json!({
        "bench": "stages",
        "model": model,
        "requests": arguments.requests,
        "concurrency": arguments.concurrency,
        "prompt": arguments.prompt,
        "generate": arguments.generate,
        "rounds": rounds,
        "slot_order": arguments.slot_order,
        "send_us_per_event": floor,
        "stages": rows,
    })
}

/// What all stages have in common.
struct Bench {
    engine: Engine,
    /// Beside it, for the raw loops.
    raw: Raw,
    prompts: Arc<[Prompt]>,
    /// Tokens that each request generates, and those of each in stage 3.
    generate: u32,
    uneven: Arc<[u32]>,
    /// Requests at once.
    at_once: usize,
    /// Threads that run plugins and connections, and one that stands for all clients.
    workers: Runtime,
    clients: Runtime,
    house: Option<House>,
}

impl Bench {
    fn set_up(arguments: &StagesBench, stages: &[Stage]) -> Result<Self, Complaint> {
        let (prompt, generate) = (arguments.prompt, arguments.generate);
        let (requests, at_once) = (number(arguments.requests), number(arguments.concurrency));
        let out = u32::try_from(generate).unwrap_or(u32::MAX);
        let uneven = uneven(out, requests);
        // The longest of stage 3 have half as much again.
        let has_arrivals = stages.iter().any(|stage| stage.number == ARRIVALS);
        let longest = match has_arrivals {
            true => generate + generate / 2 + 1,
            false => generate,
        };
        let cells = arguments.concurrency * (prompt + longest);
        let mut config = config(&arguments.measuring, arguments.threads, cells)?;
        // A loop of a plugin's goes on with what is there. What a request leaves is dropped when it has ended:
        // attention then runs over no more cells than in the raw loops.
        config.prefix_cache = true;
        if arguments.slot_order {
            config.prefill = PrefillPolicy::SlotOrder;
        }
        // Compute threads are called like the thread that makes them.
        let loaded = in_thread(COMPUTE, || -> Result<_, LoadError> {
            let engine = Engine::load(config)?;
            let raw = engine.raw()?;
            Ok((engine, raw))
        })?;
        let (engine, raw) = loaded?;
        let others = prompt + (longest - generate);
        check_room(engine.info().context, "--generate", generate, others)?;
        let prompts = prompts(&engine, requests, number(prompt))?;
        let workers = crate::house::tokio_runtime(crate::house::workers(None))?;
        let house = match &arguments.plugins {
            Some(folder) => Some(workers.block_on(House::open(&engine, folder, stages))?),
            None => None,
        };
        let clients = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(CLIENTS)
            .enable_all()
            .build()
            .map_err(Complaint::telling(
                "the clients' thread could not be set up",
            ))?;
        Ok(Self {
            engine,
            raw,
            prompts: prompts.into(),
            generate: out,
            uneven: uneven.into(),
            at_once,
            workers,
            clients,
            house,
        })
    }

    /// Each stage once; it is taken note of if it `counts`.
    fn round(&mut self, found: &mut [Found], counts: bool) -> Result<(), Complaint> {
        let (mut in_step, mut asked): (Option<Took>, Option<Took>) = (None, None);
        for one in found.iter_mut() {
            let (took, twin) = match one.stage.number {
                RAW => {
                    let took = self.in_step()?;
                    (took.clone(), in_step.insert(took).clone())
                }
                number if number < ARRIVALS => {
                    let twin = match &in_step {
                        Some(twin) => twin.clone(),
                        None => in_step.insert(self.in_step()?).clone(),
                    };
                    (self.stage(one.stage)?, twin)
                }
                ARRIVALS => {
                    let twin = self.asked(&self.uneven.clone())?;
                    (self.stage(one.stage)?, twin)
                }
                number => {
                    let twin = match &asked {
                        // Not a minute later than its twin, on a machine that others use too.
                        Some(twin) if ![AGAIN, AGAIN_TOO].contains(&number) => twin.clone(),
                        _ => asked.insert(self.asked(&self.even())?).clone(),
                    };
                    (self.stage(one.stage)?, twin)
                }
            };
            if counts {
                one.turns.push(took);
                one.twins.push(twin);
            }
        }
        // Last, so that nothing comes between a stage and its twin.
        let asked = found.iter_mut().filter(|one| one.stage.number >= ARRIVALS);
        for one in asked.filter(|_| counts) {
            if let Some(took) = one.turns.last() {
                let same = self.same_arrivals(one.stage, took)?;
                one.same_arrivals.push(same);
            }
        }
        Ok(())
    }

    /// As many tokens for each request.
    fn even(&self) -> Arc<[u32]> {
        vec![self.generate; self.prompts.len()].into()
    }

    /// Stage 0.
    fn in_step(&mut self) -> Result<Took, Complaint> {
        let replay = self.replay(&self.even(), true);
        raw::measure(&mut self.raw, replay, &self.prompts)
    }

    /// The raw loop that clients ask.
    fn asked(&mut self, generate: &Arc<[u32]>) -> Result<Took, Complaint> {
        let replay = self.replay(generate, false);
        let clients = (&self.clients, self.at_once);
        raw::measure_clients(&mut self.raw, replay, &self.prompts, clients, generate)
    }

    /// What the system takes to send an event, in microseconds: a part of the requests suffices for that.
    fn floor(&mut self) -> Result<f64, Complaint> {
        let some = self.prompts.chunks(self.at_once).next().unwrap_or(&[]);
        let replay = self.replay(&vec![self.generate; some.len()], true);
        floor::measure(&mut self.raw, replay, some, (&self.clients, self.at_once))
    }

    /// The raw loop, with the arrivals that a stage had.
    fn same_arrivals(&mut self, stage: Stage, took: &Took) -> Result<Took, Complaint> {
        let generate = match stage.number {
            ARRIVALS => self.uneven.clone(),
            _ => self.even(),
        };
        let replay = self.replay(&generate, false);
        raw::measure_arrivals(&mut self.raw, replay, &self.prompts, &took.visits)
    }

    fn replay(&self, generate: &[u32], in_step: bool) -> Replay {
        let length = |(prompt, &generate): (&Prompt, &u32)| Length {
            prompt: u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX),
            generate,
        };
        let requests = self.prompts.iter().zip(generate).map(length).collect();
        Replay::new(requests, self.at_once, self.raw.step_tokens(), in_step)
    }

    /// A stage above stage 0.
    fn stage(&self, stage: Stage) -> Result<Took, Complaint> {
        let tokens = u64::from(self.generate);
        match stage.number {
            1 | 2 => {
                let fixed = (stage.number == 1).then(|| engine::silent(&self.engine));
                let (engine, prompts) = (self.engine.clone(), self.prompts.clone());
                let at_once = self.at_once;
                self.timed(async move {
                    let tokens = engine::in_step(&engine, &prompts, at_once, tokens, fixed).await?;
                    let visits = Vec::new();
                    Ok(Answered { tokens, visits })
                })
            }
            ARRIVALS => self.timed_clients(self.each(|| engine::Uneven {
                engine: self.engine.clone(),
                prompts: self.prompts.clone(),
                generate: self.uneven.clone(),
            })),
            4..=6 => {
                let plugin = self.house()?.measure()?;
                let way = match stage.number {
                    4 => "generate",
                    5 => "top",
                    _ => "logits",
                };
                self.timed_clients(self.each(|| plugins::Calls {
                    engine: self.engine.clone(),
                    plugin: plugin.clone(),
                    workers: self.workers.handle().clone(),
                    way,
                    prompts: self.prompts.clone(),
                    tokens,
                }))
            }
            _ => {
                let (over_tcp, streams) = (stage.number > 7, stage.number > 8);
                let questions = Questions {
                    engine: self.engine.clone(),
                    prompts: self.prompts.clone(),
                    tokens,
                };
                let server = self.house()?.server();
                let clients = http::clients(server, self.at_once, over_tcp, streams, &questions);
                self.timed_clients(self.clients.block_on(clients)?)
            }
        }
    }

    fn house(&self) -> Result<&House, Complaint> {
        let missing = || Complaint::Usage("this stage needs --plugins FOLDER".to_owned());
        self.house.as_ref().ok_or_else(missing)
    }

    /// One for each request at once.
    fn each<C>(&self, client: impl Fn() -> C) -> Vec<C> {
        (0..self.at_once).map(|_| client()).collect()
    }

    fn timed_clients<C: Client>(&self, clients: Vec<C>) -> Result<Took, Complaint> {
        self.timed(ask_all(clients, self.prompts.len()))
    }

    /// Measures what clients do on their thread until they have their tokens.
    fn timed(
        &self,
        load: impl Future<Output = Result<Answered, Complaint>> + Send + 'static,
    ) -> Result<Took, Complaint> {
        let read = || {
            let decoding = "corral_engine_compute_cpu_seconds_total";
            let steps = metric(&self.engine, "corral_engine_steps_total");
            (metric(&self.engine, decoding), steps)
        };
        timed(|| -> Result<Done, Complaint> {
            let before = read();
            // Not on this thread, which is none of theirs.
            let all = self.clients.spawn(load);
            let answered = self.clients.block_on(all);
            let answered = answered.map_err(Complaint::telling("the clients crashed"))??;
            let after = read();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let steps = (after.1 - before.1) as u64;
            Ok(Done {
                answered,
                steps,
                decoding: after.0 - before.0,
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

fn number(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: StagesBench,
    }

    #[test]
    fn programs_are_told_what_was_measured_and_each_stage() {
        let line = ["corral", "--model", "a/model.gguf", "--stages", "0,2"];
        let arguments = Line::try_parse_from(line)
            .expect("it makes sense")
            .arguments;
        assert_eq!(arguments.stages, [0, 2]);
        let rows = [json!({"stage": 0})];
        let told = report(&arguments, "model.gguf", 5, &rows, Some(7.5));
        assert_eq!(told["send_us_per_event"], 7.5);
        assert_eq!(told["model"], "model.gguf");
        for (key, number) in [
            ("requests", 40),
            ("concurrency", 8),
            ("prompt", 32),
            ("generate", 50),
            ("rounds", 5),
        ] {
            assert_eq!(told[key], number, "{key}");
        }
        assert_eq!(told["stages"], json!([{"stage": 0}]));
    }
}
