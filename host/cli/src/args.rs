//! Arguments of `serve` and `run`, and those that several commands share. Other commands define theirs beside their code.

mod cluster;
mod devices;
mod folders;
mod kv_events;
mod linked;
mod memory;
mod model_pool;
mod models;
mod parsers;
mod public;
mod run;
mod secrets;
mod serve;
mod telemetry;

pub use devices::{BackendArgs, DeviceArgs};
pub(crate) use folders::{FolderArg, OpenFolders};
pub(crate) use linked::{LINKED_HINT, LinkedArg, check_linked};
pub(crate) use models::{AdapterArg, ModelFileArg};
pub use models::{ModelArg, ModelArgs};
pub(crate) use parsers::{SECONDS, deployment_or_route, duration};
pub use parsers::{seconds, whole};
pub(crate) use run::RunArgs;
pub(crate) use secrets::{SecretArg, SecretValues};
pub(crate) use serve::PluginArg;
pub use serve::ServeArgs;

#[cfg(test)]
mod tests {
    use super::ServeArgs;
    use crate::Error;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        serve: ServeArgs,
    }

    /// Parses and checks arguments of `corral serve`.
    pub(super) fn parse_serve(arguments: &str) -> Result<ServeArgs, String> {
        let words = ["serve"].into_iter().chain(arguments.split_whitespace());
        let serve = CommandLine::try_parse_from(words).map_err(|error| error.to_string())?;
        match serve.serve.check() {
            Ok(()) => Ok(serve.serve),
            Err(Error::Usage(message)) => Err(message),
            Err(error) => panic!("{error:?}"),
        }
    }
}
