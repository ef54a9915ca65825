//! The binary `corral`: reads the command line, puts the house together, and says what went wrong
//! in one line.

#![forbid(unsafe_code)]

mod admin;
mod admin_token;
mod arguments;
mod bench;
mod complaint;
mod deploy;
mod doctor;
mod front;
mod house;
mod keys;
mod logs;
mod memory;
mod offload;
mod residence;
mod run;
mod serve;
mod top;

use arguments::{Command, CommandLine};
use complaint::Complaint;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command_line = match CommandLine::read() {
        Ok(Ok(command_line)) => command_line,
        // Help or version: printed.
        Ok(Err(code)) => return code,
        Err(complaint) => return complaint.tell(false),
    };
    let verbose = command_line.verbose;
    logs::start(verbose, command_line.command.default_logs());
    let ended = match command_line.command {
        Command::Serve(arguments) => serve::serve(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Keys(command) => keys::keys(&command),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Deployments(command) => deploy::run(&command),
    };
    ended.unwrap_or_else(|complaint: Complaint| complaint.tell(verbose))
}
