//! `corral-bench` measures what Corral promises of its speed. `make bench` runs all of it.
//!
//! Machines are shared and noisy: variants are measured in one run, in turns, and compared by ratios within a round.
//! Load on endpoints is `corral bench load`, since users want that too.

#![forbid(unsafe_code)]

mod all;
mod args;
mod boundary;
mod deploy;
mod flat;
mod gap;
mod http;
mod local_server;
mod model;
mod prefix;
mod stages;
mod step;
mod threads;
mod workload;

use args::{Bench, CommandLine};
use corral_cli::{Error, logs, startup};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command_line = match CommandLine::read() {
        Ok(Some(command_line)) => command_line,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return error.report("corral-bench", false),
    };
    logs::start(command_line.verbose, "error");
    match run(&command_line.bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("corral-bench", command_line.verbose),
    }
}

fn run(bench: &Bench) -> Result<(), Error> {
    let runtime = || startup::tokio_runtime(startup::workers(None));
    match bench {
        Bench::All(args) => all::measure(args),
        Bench::Boundary(args) => runtime()?.block_on(boundary::measure(args)),
        Bench::Deploy(args) => runtime()?.block_on(deploy::measure(args)),
        Bench::Flat(args) => runtime()?.block_on(flat::measure(args)),
        Bench::Gap(args) => runtime()?.block_on(gap::measure(args)),
        Bench::Http(args) => http::measure(args),
        Bench::Model(args) => model::write(args),
        Bench::Prefix(args) => runtime()?.block_on(prefix::measure(args)),
        Bench::Stages(args) => stages::measure(args),
        Bench::Step(args) => step::measure(args),
        Bench::Threads(args) => threads::measure(args),
    }
}

/// One thread for all clients, apart from the server's.
fn client_runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::context("cannot start the clients' thread"))
}
