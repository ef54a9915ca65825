//! `corral deploy`, `list`, `show`, `logs`, `rollback`, `split`, `pause`, `resume`, `remove`, `invoke`:
//! what people do with deployments, through the admin API of a server.

mod arguments;
mod client;
mod commands;
mod invoke;
mod manifest;
mod progress;
mod table;

pub(crate) use arguments::DeployCommand;

use crate::Error;
use crate::startup;
use std::process::ExitCode;

/// Does what was asked; exit code 0 if it was done.
pub(crate) fn run(command: &DeployCommand) -> Result<ExitCode, Error> {
    if let DeployCommand::Deploy(deploy) = command
        && deploy.schema
    {
        return commands::print(corral_server::deployments::MANIFEST_SCHEMA);
    }
    let runtime = startup::tokio_runtime(1)?;
    let done = runtime.block_on(commands::run(command));
    runtime.shutdown_background();
    done
}
