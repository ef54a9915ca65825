//! Commands for deployments through a server's admin API: `corral deploy`, `list`, `show`, `jobs`, `logs`, `rollback`, `split`,
//! `pause`, `resume`, `remove`, `invoke`.

mod args;
mod commands;
mod invoke;
mod manifest;
mod table;
mod wait;

pub(crate) use args::{DeployArgs, DeployCommand, ManifestArgs, ServerArgs};
pub(crate) use commands::{deploy_if_changed, is_developing};
pub(crate) use manifest::{
    PreparedManifest, Replacement, Upload, is_component, plain_manifest, prepare,
};

use crate::terminal::print;
use crate::{Error, startup};
use std::process::ExitCode;

/// Runs a command.
pub(crate) fn run(command: &DeployCommand) -> Result<ExitCode, Error> {
    if let DeployCommand::Deploy(deploy) = command
        && deploy.schema
    {
        return print(&format!("{:#}\n", corral_server::manifest_schema()));
    }
    startup::block_on(1, commands::run(command))?
}
