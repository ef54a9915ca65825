//! `corral-bench` measures what Corral promises of its speed. `make bench` runs all of it.
//!
//! Machines are shared and noisy: variants are measured in one run, in turns, and compared by ratios within a round.
//! Load on endpoints is `corral bench load`, since users want that too.

#![forbid(unsafe_code)]

mod agents;
mod all;
mod args;
mod busy_cores;
mod console;
mod cpu_clock;
mod deploy;
mod drafts;
mod first_load;
mod http;
mod inter_token_latency;
mod isolation;
mod languages;
mod latency;
mod latency_drift;
mod local_server;
mod model;
mod plugin_overhead;
mod prefill;
mod prefix;
mod programs;
mod requests;
mod stages;
mod trace_collector;
mod workload;

use clap::{Parser, Subcommand};
use corral_cli::{Error, isolated_job, logs, priority, startup};
use std::process::ExitCode;

/// Measure Corral
#[derive(Debug, Parser)]
#[command(name = "corral-bench", version)]
struct CommandLine {
    #[command(subcommand)]
    bench: Bench,
    /// Show the causes of errors, and llama.cpp's log
    #[arg(long, short, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Prompt tokens and first tokens of conversations that grow with each turn, on servers of OpenAI's API
    Agents(agents::AgentsArgs),
    /// All benches with a target, and each target with its figure, in about an hour on two cores
    All(all::AllArgs),
    /// Time of short requests beside processes that keep the cores busy
    BusyCores(busy_cores::BusyCoresArgs),
    /// Tokens a second while consoles read the server's events, and while none does
    Console(console::ConsoleArgs),
    /// Time from a deploy to the first response, with and without compiled code in the cache
    Deploy(deploy::DeployArgs),
    /// Tokens a second with and without a draft model, by streams
    Drafts(drafts::DraftsArgs),
    /// Time from the load of a model file to its first token, with and without the check of the file
    FirstLoad(first_load::FirstLoadArgs),
    /// Requests a second and latency of a plugin that needs no model, by connections, beside a peer's
    Http(http::HttpArgs),
    /// Inter-token latency while long prompts are prefilled, with and without the prefill budget
    InterTokenLatency(inter_token_latency::InterTokenLatencyArgs),
    /// Time that limits add to the compilation of a new component and of a new grammar
    Isolation(isolation::IsolationArgs),
    /// Costs of plugins in Rust, Python, JavaScript, C and Go, and of a plugin whose model is on another host
    Languages(languages::LanguagesArgs),
    /// First tokens, gaps and tokens a second under each latency policy, beside a peer's
    Latency(latency::LatencyArgs),
    /// Whether requests get slower with the number of earlier requests, and the wake-ups of an idle engine
    LatencyDrift(latency_drift::LatencyDriftArgs),
    /// Write a model with random weights, as large and as slow as a real one
    Model(model::ModelArgs),
    /// Overhead between engine and plugins: loops, sampling plugins, logits, host calls, instances
    PluginOverhead(plugin_overhead::PluginOverheadArgs),
    /// Tokens a second of prompts, beside those of llama.cpp's llama-bench
    Prefill(prefill::PrefillArgs),
    /// Time to first token of prompts with a cached prefix, and the time of a fork
    Prefix(prefix::PrefixArgs),
    /// Programs as plugins, and the same as clients of this server and of llama.cpp's
    Programs(programs::ProgramsArgs),
    /// Throughput and CPU time from llama.cpp alone to events over TCP, layer by layer
    Stages(stages::StagesArgs),
}

fn main() -> ExitCode {
    if let Some(exit) = isolated_job::run_job() {
        return exit;
    }
    let command_line = match corral_cli::command_line::parse::<CommandLine>() {
        Ok(Some(command_line)) => command_line,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return error.report("corral-bench", false),
    };
    match &command_line.bench {
        Bench::Http(args) if args.access_log => {
            logs::start_without_access_log(command_line.verbose);
        }
        _ => logs::start(command_line.verbose, "error"),
    }
    match run(&command_line.bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("corral-bench", command_line.verbose),
    }
}

fn run(bench: &Bench) -> Result<(), Error> {
    let runtime = || startup::tokio_runtime(startup::workers(None));
    match bench {
        Bench::Agents(args) => runtime()?.block_on(agents::measure(args)),
        Bench::All(args) => all::measure(args),
        Bench::BusyCores(args) => {
            // As a server does before it starts threads.
            priority::raise();
            busy_cores::measure(args, &runtime()?)
        }
        Bench::Console(args) => runtime()?.block_on(console::measure(args)),
        Bench::Deploy(args) => runtime()?.block_on(deploy::measure(args)),
        Bench::Drafts(args) => runtime()?.block_on(drafts::measure(args)),
        Bench::FirstLoad(args) => runtime()?.block_on(first_load::measure(args)),
        Bench::Http(args) => http::measure(args),
        Bench::InterTokenLatency(args) => runtime()?.block_on(inter_token_latency::measure(args)),
        Bench::Isolation(args) => runtime()?.block_on(isolation::measure(args)),
        Bench::Languages(args) => runtime()?.block_on(languages::measure(args)),
        Bench::Latency(args) => runtime()?.block_on(latency::measure(args)),
        Bench::LatencyDrift(args) => runtime()?.block_on(latency_drift::measure(args)),
        Bench::Model(args) => model::write(args),
        Bench::PluginOverhead(args) => runtime()?.block_on(plugin_overhead::measure(args)),
        Bench::Prefill(args) => runtime()?.block_on(prefill::measure(args)),
        Bench::Prefix(args) => runtime()?.block_on(prefix::measure(args)),
        Bench::Programs(args) => programs::measure(args),
        Bench::Stages(args) => stages::measure(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_definitions_are_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }
}
