//! The command line of what is done with deployments.

use crate::admin::Admin;
use crate::args::LinkedArg;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub(crate) enum DeployCommand {
    /// Deploy a plugin to a server: a corral.toml, or a component and the route it answers at.
    Deploy(Deploy),
    /// List the deployments of a server.
    List(List),
    /// Show a deployment: its revisions, who of them gets requests, and what is wrong.
    Show(Named),
    /// Show what a deployment's plugins wrote.
    Logs(Logs),
    /// Give all requests to an earlier revision; by default undo the last change of who gets them.
    Rollback(Rollback),
    /// Share requests out among revisions, e.g. 'corral split chat 3=90 4=10'.
    Split(Split),
    /// Refuse a deployment's requests until it is resumed.
    Pause(Named),
    /// Serve a paused deployment's requests again.
    Resume(Named),
    /// Remove a deployment with all its revisions.
    Remove(Named),
    /// Send a request to a deployment and print its answer.
    Invoke(Invoke),
}

/// The server that is asked.
#[derive(Args, Debug)]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) admin: Admin,
    /// File with the admin token, as 'corral serve' says; without it, the token in
    /// CORRAL_ADMIN_TOKEN. For unix:PATH none is needed.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Deploy {
    /// A corral.toml, a folder with one, or a component (FILE.wasm).
    #[arg(value_name = "FILE", default_value = "corral.toml")]
    pub(crate) file: PathBuf,
    /// For a component: what the deployment is called, by default as the file.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// For a component: a path prefix below which it answers; may be given several times.
    #[arg(long = "route", value_name = "ROUTE")]
    pub(crate) routes: Vec<String>,
    /// For a component: another one that it is linked with, templating=FILE or sampling.NAME=FILE; may be
    /// given several times. A corral.toml says more of them.
    #[arg(long = "linked", value_name = "ROLE=FILE")]
    pub(crate) linked: Vec<LinkedArg>,
    /// Give the new revision no requests yet.
    #[arg(long)]
    pub(crate) no_traffic: bool,
    /// Print the JSON Schema of corral.toml and do nothing else.
    #[arg(long)]
    pub(crate) schema: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The deployment.
    #[arg(value_name = "NAME")]
    pub(crate) name: corral_server::deployments::Name,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Args, Debug)]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Go on with what comes, until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Begin after the line of this number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) after: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Rollback {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The revision that gets all requests.
    #[arg(long, value_name = "N")]
    pub(crate) revision: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct Split {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Revisions and their weights; those that are not named get nothing.
    #[arg(value_name = "REVISION=WEIGHT", required = true)]
    pub(crate) shares: Vec<ShareArgument>,
}

#[derive(Args, Debug)]
pub(crate) struct Invoke {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The body: a text, @FILE, or - for standard input.
    #[arg(long, short, value_name = "DATA")]
    pub(crate) data: Option<String>,
    /// The method; by default POST with a body and GET without.
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub(crate) method: Option<http::Method>,
    /// The path; by default the deployment's first route.
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// A header; may be given several times.
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<HeaderArgument>,
}

/// `REVISION=WEIGHT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareArgument {
    pub(crate) revision: u64,
    pub(crate) weight: u32,
}

impl FromStr for ShareArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (revision, weight) = text.split_once('=')?;
            Some(ShareArgument {
                revision: revision.parse().ok()?,
                weight: weight.parse().ok()?,
            })
        };
        read().ok_or_else(|| "write REVISION=WEIGHT, e.g. 4=10".to_owned())
    }
}

/// `NAME: VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderArgument {
    pub(crate) name: http::HeaderName,
    pub(crate) value: http::HeaderValue,
}

impl FromStr for HeaderArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (name, value) = text.split_once(':')?;
            Some(HeaderArgument {
                name: name.trim().parse().ok()?,
                value: value.trim().parse().ok()?,
            })
        };
        read().ok_or_else(|| "write NAME: VALUE, e.g. 'accept: text/plain'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_headers_are_read() {
        let share = ShareArgument {
            revision: 3,
            weight: 90,
        };
        assert_eq!("3=90".parse(), Ok(share));
        for bad in ["3", "3=", "=3", "a=1", "3=-1"] {
            assert!(bad.parse::<ShareArgument>().is_err(), "{bad}");
        }
        let header: HeaderArgument = "X-A: b c".parse().expect("good");
        assert_eq!(
            (header.name.as_str(), header.value),
            ("x-a", "b c".parse().expect("good"))
        );
        for bad in ["x", "a b: c", ": x"] {
            assert!(bad.parse::<HeaderArgument>().is_err(), "{bad}");
        }
    }
}
