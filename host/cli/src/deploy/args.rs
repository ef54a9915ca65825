//! Arguments of the commands for deployments.

use crate::admin::{Address, AdminArgs};
use crate::args::{LinkedArg, deployment_or_route, duration};
use crate::registry::ArtifactArgs;
use clap::{Args, Subcommand};
use http::{HeaderName, HeaderValue};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum DeployCommand {
    /// Deploy a plugin: a corral.toml, a component and its routes, or an artifact of a registry
    Deploy(Box<DeployArgs>),
    /// List the deployments of a server
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show a deployment: its revisions, their traffic, and problems
    Show(NamedArgs),
    /// List, retry, cancel or purge a deployment's jobs and the runs of its schedules
    Jobs(JobsArgs),
    /// Print the output of a deployment's plugins
    Logs(LogsArgs),
    /// Route all requests to an earlier revision [default: undo the last change of traffic]
    Rollback(RollbackArgs),
    /// Split requests among revisions, e.g. 'corral split chat 3=90 4=10'
    Split(SplitArgs),
    /// Refuse a deployment's requests until it is resumed
    Pause(NamedArgs),
    /// Serve a paused deployment's requests again
    Resume(NamedArgs),
    /// Remove a deployment with all its revisions
    #[command(visible_alias = "rm")]
    Remove(NamedArgs),
    /// Send a request to a deployment and print its response
    Invoke(InvokeArgs),
}

/// Arguments of all commands.
#[derive(Args, Debug)]
pub struct ServerArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to deploy or to push.
#[derive(Args, Debug)]
pub struct ManifestArgs {
    /// A corral.toml, a directory with one, or a component (FILE.wasm); 'deploy' also takes oci://HOST/REPO:TAG
    #[arg(value_name = "FILE", default_value = "corral.toml")]
    pub(crate) file: PathBuf,
    /// Name of a component's deployment [default: the file's stem]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Route (path prefix) of a component; repeatable
    #[arg(long = "route", value_name = "ROUTE")]
    pub(crate) routes: Vec<String>,
    /// Component to link to FILE.wasm: templating=FILE or sampling.NAME=FILE; repeatable
    #[arg(long = "linked", value_name = "ROLE=FILE")]
    pub(crate) linked: Vec<LinkedArg>,
    /// Entry of [configuration], in place of one of the corral.toml with this name; repeatable
    #[arg(long = "config", value_name = "NAME=VALUE", value_parser = configuration)]
    pub(crate) configuration: Vec<(String, String)>,
    /// Middleware before FILE.wasm; repeatable, the outermost first
    #[arg(long = "middleware", value_name = "FILE")]
    pub(crate) middleware: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct DeployArgs {
    #[command(flatten)]
    pub(crate) manifest: ManifestArgs,
    /// Route no requests to the new revision yet
    #[arg(long)]
    pub(crate) no_traffic: bool,
    /// In a cluster, return once all live hosts serve the deploy, or one of them cannot
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print the JSON Schema of corral.toml and exit
    #[arg(long)]
    pub(crate) schema: bool,
    #[command(flatten)]
    pub(crate) artifact: ArtifactArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Arguments of commands for one deployment.
#[derive(Args, Debug)]
pub struct NamedArgs {
    /// Name of the deployment
    #[arg(value_name = "NAME")]
    pub(crate) name: corral_server::deployments::DeploymentName,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Args, Debug)]
pub struct JobsArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// Only jobs in this state
    #[arg(long, value_name = "STATE", value_parser = ["waiting", "running", "succeeded", "dead", "canceled"])]
    pub(crate) state: Option<String>,
    /// List at most N jobs, the newest [default: 100]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: Option<u16>,
    /// Make a dead or canceled job wait again
    #[arg(long, value_name = "ID", group = "change")]
    pub(crate) retry: Option<String>,
    /// Cancel a job that waits or runs
    #[arg(long, value_name = "ID", group = "change")]
    pub(crate) cancel: Option<String>,
    /// Remove finished jobs, with --state only those
    #[arg(long, group = "change")]
    pub(crate) purge: bool,
}

#[derive(Args, Debug)]
pub struct LogsArgs {
    /// Name of the deployment, or the route of a plugin that 'corral serve --plugin' names
    #[arg(value_name = "NAME", value_parser = deployment_or_route)]
    pub(crate) name: String,
    /// Print new lines until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print at most the last N lines that the server keeps
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) tail: Option<u64>,
    /// Print only lines of the last DURATION, e.g. 30s, 10m or 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Print only lines of this level or a higher one, and those of standard error
    #[arg(long, value_name = "LEVEL", value_parser = ["trace", "debug", "info", "warn", "error", "critical"])]
    pub(crate) level: Option<String>,
    /// Start after the line with this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) after: u64,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Args, Debug)]
pub struct RollbackArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// Revision that gets all requests [default: as before the last change of traffic]
    #[arg(long, value_name = "N")]
    pub(crate) revision: Option<u64>,
}

#[derive(Args, Debug)]
pub struct SplitArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// Revisions and their weights; all others get no requests
    #[arg(value_name = "REVISION=WEIGHT", required = true, value_parser = weight)]
    pub(crate) weights: Vec<(u64, u32)>,
}

#[derive(Args, Debug)]
pub struct InvokeArgs {
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// Body: a text, @FILE, or - for standard input
    #[arg(long, short, value_name = "DATA")]
    pub(crate) data: Option<String>,
    /// Method [default: POST with a body, else GET]
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub(crate) method: Option<http::Method>,
    /// Path [default: the deployment's first route]
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// Header; repeatable
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// API key, for a deployment that needs one; ignored if a header is Authorization or X-Api-Key
    #[arg(
        long,
        value_name = "KEY",
        env = "CORRAL_API_KEY",
        hide_env_values = true
    )]
    pub(crate) key: Option<String>,
    /// Public listener: http://HOST:PORT or https://HOST:PORT [default: as the admin listener reports it]
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub(crate) public: Option<Address>,
}

fn configuration(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or("write NAME=VALUE, e.g. GREETING=hello")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn weight(text: &str) -> Result<(u64, u32), String> {
    let parse = || {
        let (revision, weight) = text.split_once('=')?;
        Some((revision.parse().ok()?, weight.parse().ok()?))
    };
    parse().ok_or_else(|| "write REVISION=WEIGHT, e.g. 4=10".to_owned())
}

/// Parses `NAME: VALUE`.
pub(super) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parse = || {
        let (name, value) = text.split_once(':')?;
        Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    parse().ok_or_else(|| "write NAME: VALUE, e.g. 'accept: text/plain'".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_headers_parse() {
        assert_eq!(weight("3=90"), Ok((3, 90)));
        for bad in ["3", "3=", "=3", "a=1", "3=-1"] {
            assert!(weight(bad).is_err(), "{bad}");
        }
        let (name, value) = header("X-A: b c").expect("a valid header");
        assert_eq!(name.as_str(), "x-a");
        assert_eq!(value, "b c");
        for bad in ["x", "a b: c", ": x"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }
}
