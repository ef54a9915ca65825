//! What `corral serve` takes.

use super::{Models, PluginLimits, seconds};
use crate::complaint::Complaint;
use crate::front::FrontArguments;
use clap::Args;
use corral_server::{Prefix, Routes};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) models: Models,
    /// Where plugins are called, HOST:PORT; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Where /metrics, what 'corral top' shows and the admin API are: HOST:PORT, or unix:PATH for a socket
    /// in the file system, which only this user can connect to and where nobody needs the admin token.
    /// Whoever can reach it from another machine has to send that; there it has the certificate of
    /// --tls-cert, if there is one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub(crate) admin: String,
    /// Folder in which deployments are kept, of this user alone; made if it isn't there. With it
    /// 'corral deploy' works.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) store: Option<PathBuf>,
    /// File with the admin token. Without it the token is that in CORRAL_ADMIN_TOKEN, or one that is
    /// made and written to the file admin-token in the store.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// A plugin that lasts as long as the process, and the path prefix below which it answers; may be
    /// given several times.
    #[arg(long = "plugin", value_name = "ROUTE=FILE")]
    pub(crate) plugins: Vec<PluginArgument>,
    /// The priority of a route's plugin, 0 unless it is said, up to 255: generations of the higher
    /// one always go first. May be given several times.
    #[arg(long = "priority", value_name = "ROUTE=N")]
    pub(crate) priorities: Vec<PriorityArgument>,
    /// A route whose plugin shares the prefixes of its prompts with all others named so; how quickly a
    /// prompt is read tells them whether another one's began like it. May be given several times.
    #[arg(long = "share-prefixes", value_name = "ROUTE")]
    pub(crate) sharing: Vec<Prefix>,
    #[command(flatten)]
    pub(crate) limits: PluginLimits,
    #[command(flatten)]
    pub(crate) front: FrontArguments,
    /// How long running requests may go on after SIGTERM, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// How long after SIGTERM requests are still taken, in seconds: time for whoever sends them here to
    /// see that /readyz says no.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) drain_delay: Option<Duration>,
}

impl Serve {
    /// What can be known to be wrong without touching a file.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        self.models.check()?;
        if self.admin.starts_with("unix:") && self.admin_token_file.is_some() {
            return Err(Complaint::Usage(
                "--admin-token-file is of no use with --admin unix:PATH, where nobody is asked for \
                 the token; leave one of them away"
                    .to_owned(),
            ));
        }
        let mut routes = Routes::default();
        for plugin in &self.plugins {
            routes
                .add(plugin.route.clone(), ())
                .map_err(|taken| Complaint::Usage(taken.to_string()))?;
        }
        let priorities = self
            .priorities
            .iter()
            .map(|said| ("--priority", &said.route));
        let sharing = self.sharing.iter().map(|route| ("--share-prefixes", route));
        let front = self.front.routes();
        for (option, route) in priorities.chain(sharing).chain(front) {
            if !self.plugins.iter().any(|plugin| plugin.route == *route) {
                return Err(Complaint::Usage(format!(
                    "{option} names the route '{route}', which no --plugin has"
                )));
            }
        }
        Ok(())
    }
}

/// `ROUTE=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginArgument {
    pub(crate) route: Prefix,
    pub(crate) file: PathBuf,
}

impl FromStr for PluginArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A route may hold `=`, a file too; the first one is the border, as people expect.
        let Some((route, file)) = text.split_once('=') else {
            return Err("there is no route; write ROUTE=FILE, e.g. /generate=generate.wasm".into());
        };
        if file.is_empty() {
            return Err("there is no file; write ROUTE=FILE, e.g. /generate=generate.wasm".into());
        }
        Ok(PluginArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            file: PathBuf::from(file),
        })
    }
}

/// `ROUTE=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorityArgument {
    pub(crate) route: Prefix,
    pub(crate) priority: u8,
}

impl FromStr for PriorityArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "write ROUTE=N with N from 0 to 255, e.g. /chat=10".to_owned();
        let (route, priority) = text.rsplit_once('=').ok_or_else(expected)?;
        Ok(PriorityArgument {
            route: route.parse::<Prefix>().map_err(|error| error.to_string())?,
            priority: priority.parse().map_err(|_| expected())?,
        })
    }
}
