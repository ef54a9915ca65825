//! The command line of Corral: reads arguments, starts services, runs one command and reports errors.
//!
//! The binary `corral` is [`main`] alone. This is a library so that `corral-bench` can share startup, arguments
//! and the load client; nothing else depends on it.

#![forbid(unsafe_code)]

mod admin;
pub mod admin_token;
pub mod args;
mod authoring;
pub mod bench;
pub mod command_line;
mod completions;
mod compose;
mod config;
mod deploy;
mod doctor;
mod error;
mod http_client;
pub mod isolated_job;
mod keys;
pub mod logs;
mod model;
mod open_files;
pub mod priority;
mod progress;
mod registry;
mod run;
mod serve;
mod service_manager;
pub mod startup;
pub mod terminal;
mod text_file;
mod top;
mod user_cache;

pub use error::{Cause, Error};

use clap::CommandFactory;
use command_line::{Command, CommandLine};
use corral_engine::limit_free_memory;
use std::process::ExitCode;

/// Runs `corral` with the arguments of the process.
pub fn main() -> ExitCode {
    if let Some(exit) = isolated_job::run_job() {
        return exit;
    }
    limit_free_memory();
    let command_line = match CommandLine::read() {
        Ok(Some(command_line)) => command_line,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return error.report("corral", false),
    };
    let verbose = command_line.verbose;
    let mut telemetry = None;
    match &command_line.command {
        Command::Serve(args) => {
            telemetry = match args.open_telemetry() {
                Ok(telemetry) => telemetry,
                Err(error) => return error.report("corral", verbose),
            };
            logs::start_server(verbose, &args.log, telemetry.as_ref());
        }
        // The output belongs to the plugin, or to the command.
        _ => logs::start(verbose, "error"),
    }
    let result = match command_line.command {
        Command::Serve(args) => serve::serve(*args, telemetry),
        Command::Run(args) => run::run(*args),
        Command::Top(args) => top::top(&args),
        Command::Keys(command) => keys::keys(&command),
        Command::Model(command) => model::model(&command),
        Command::Config(command) => config::config(&command, CommandLine::serve_command()),
        Command::Bench(command) => bench::bench(&command),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::New(args) => authoring::new(&args),
        Command::Build(args) => authoring::build(&args),
        Command::Wit(args) => authoring::wit(&args),
        Command::Compose(args) => compose::compose(&args),
        Command::Watch(args) => authoring::watch(args, verbose),
        Command::Deployments(command) => deploy::run(&command),
        Command::Push(args) => registry::push(&args),
        Command::Pull(args) => registry::pull(&args),
        Command::Completions(args) => completions::completions(&args, CommandLine::command()),
        Command::ManPages(args) => completions::man_pages(&args, CommandLine::command()),
    };
    // Before an error, and before the process ends.
    logs::flush();
    result.unwrap_or_else(|error: Error| error.report("corral", verbose))
}
