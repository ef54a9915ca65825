//! `corral bench load`: load on any endpoint of OpenAI's API.
//!
//! All other benches measure Corral from the inside and live in `corral-bench`, which shares the client, the rounds,
//! the tables and the statistics of this module.

pub mod connection;
mod load;
pub mod rounds;
pub mod sse;
pub mod stats;
pub mod table;
pub mod url;

pub use load::{LoadArgs, MAX_SAMPLES};

use crate::{Error, startup};
use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure throughput and latency of endpoints of OpenAI's API
    Load(Box<LoadArgs>),
}

/// Measures and prints the figures.
pub(crate) fn bench(command: &BenchCommand) -> Result<ExitCode, Error> {
    let BenchCommand::Load(args) = command;
    startup::block_on(startup::workers(None), load::measure(args))??;
    Ok(ExitCode::SUCCESS)
}
