//! Arguments of `corral serve`.

use super::cluster::ClusterArgs;
use super::folders::FolderArgs;
use super::kv_events::KvEventArgs;
use super::models::ModelArgs;
use super::parsers::{ForRoute, route_and_value, seconds};
use super::public::PublicArgs;
use super::run::CallLimitArgs;
use super::secrets::SecretArgs;
use super::telemetry::TelemetryArgs;
use crate::Error;
use crate::config::ConfigSource;
use crate::logs::LogArgs;
use clap::Args;
use corral_engine::Latency;
use corral_server::{Route, RouteTable, Telemetry};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Plugins")]
pub struct ServeArgs {
    /// Plugin at a route (path prefix) until the process ends; repeatable
    #[arg(long = "plugin", value_name = "ROUTE=FILE")]
    pub plugins: Vec<PluginArg>,
    /// Directory of deployments, which enables 'corral deploy'
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Compile fast, to slower code; serve meanwhile; quote a plugin's last line on stderr in its errors
    #[arg(long)]
    pub(crate) develop: bool,
    /// Priority of a route's requests, up to 255; higher ones always run first; repeatable [default: 0]
    #[arg(long = "priority", value_name = "ROUTE=N", value_parser = priority)]
    pub(crate) priorities: Vec<ForRoute<u8>>,
    /// Targets for gaps and first tokens: a policy or numbers (docs/serving.md); repeatable [default: balanced]
    #[arg(long = "latency", value_name = "[ROUTE=]POLICY")]
    pub(crate) latencies: Vec<LatencyArg>,
    /// Route that shares cached prefixes with other such routes; response times reveal them to each other; repeatable
    #[arg(long = "share-prefixes", value_name = "ROUTE")]
    pub share_prefixes: Vec<Route>,
    #[command(flatten)]
    pub models: ModelArgs,
    #[command(flatten)]
    pub limits: CallLimitArgs,
    #[command(flatten)]
    pub public: PublicArgs,
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) kv_events: KvEventArgs,
    /// Address of the public listener, HOST:PORT; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        help_heading = "Network"
    )]
    pub listen: String,
    /// Address of the admin API and /metrics, HOST:PORT, or unix:PATH for this user alone
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081",
        help_heading = "Network"
    )]
    pub admin: String,
    /// Serve no console, the page for browsers, on the admin listener
    #[arg(long, help_heading = "Network")]
    pub(crate) no_console: bool,
    /// Seconds that running requests may take after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = "Network")]
    pub grace_period: Duration,
    /// Seconds after SIGTERM in which /readyz fails and requests are still accepted [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Network")]
    pub drain_delay: Option<Duration>,
    /// File with the admin token [default: CORRAL_ADMIN_TOKEN, else the file admin-token in the store]
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub admin_token_file: Option<PathBuf>,
    /// Deploy only artifacts that this public key has signed (PEM, ECDSA P-256), see docs/registry.md
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub(crate) verify_key: Option<PathBuf>,
    /// TOML file of these options by their names, e.g. kv-cells = 4096; flags replace its values; reread on SIGHUP
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    /// Check all options and files, print what the server would do, and exit with 0, or with 2 if something is wrong
    #[arg(long, help_heading = "Configuration")]
    pub(crate) check: bool,
    /// The file of `--config`, once it is read.
    #[arg(skip)]
    pub(crate) source: Option<Box<ConfigSource>>,
}

impl ServeArgs {
    /// Finds errors that need no file access.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.models.check()?;
        self.secrets.check()?;
        self.folders.check()?;
        self.cluster.check(self.store.is_some())?;
        if self.admin.starts_with("unix:") && self.admin_token_file.is_some() {
            return Err(Error::usage(
                "--admin-token-file has no effect with --admin unix:PATH, which needs no token; \
                 remove one of them",
            ));
        }
        let mut routes = RouteTable::default();
        for plugin in &self.plugins {
            routes
                .add(plugin.route.clone(), ())
                .map_err(|taken| Error::Usage(taken.to_string()))?;
        }
        let priorities = self.priorities.iter().map(|arg| ("--priority", &arg.route));
        let latencies = self.latencies.iter();
        let latencies = latencies.filter_map(|arg| Some(("--latency", arg.route.as_ref()?)));
        let sharing = self.share_prefixes.iter();
        let sharing = sharing.map(|route| ("--share-prefixes", route));
        let named = priorities
            .chain(latencies)
            .chain(sharing)
            .chain(self.public.routes());
        for (option, route) in named {
            if !self.plugins.iter().any(|plugin| plugin.route == *route) {
                return Err(Error::usage(format!(
                    "{option} names the route '{route}', which no --plugin has"
                )));
            }
        }
        Ok(())
    }

    /// Telemetry, if there is an endpoint. A check sends nothing.
    pub(crate) fn open_telemetry(&self) -> Result<Option<Arc<Telemetry>>, Error> {
        match self.check {
            true => Ok(None),
            false => self.telemetry.open(),
        }
    }

    /// The priority of a route: the last one given, or 0.
    pub(crate) fn priority(&self, route: &Route) -> u8 {
        let priority = self.priorities.iter().rfind(|arg| arg.route == *route);
        priority.map_or(0, |arg| arg.value)
    }

    /// The latency of a route, or of all other deployments: the last one given.
    pub(crate) fn latency(&self, route: Option<&Route>) -> Option<Latency> {
        let mut latencies = self.latencies.iter();
        let latency = latencies.rfind(|arg| arg.route.as_ref() == route);
        latency.map(|arg| arg.latency)
    }
}

/// `ROUTE=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginArg {
    pub route: Route,
    pub file: PathBuf,
}

impl FromStr for PluginArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "write ROUTE=FILE, e.g. /generate=generate.wasm";
        // Both may contain `=`; the first one separates them.
        let (route, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("the route or the file is missing; {EXPECTED}"))?;
        Ok(PluginArg {
            route: route.parse::<Route>().map_err(|error| error.to_string())?,
            file: PathBuf::from(file),
        })
    }
}

/// `ROUTE=N`.
fn priority(text: &str) -> Result<ForRoute<u8>, String> {
    let expected = "write ROUTE=N with N from 0 to 255, e.g. /chat=10";
    let (route, priority) = route_and_value(text, expected)?;
    let value = priority.parse().map_err(|_| expected)?;
    Ok(ForRoute { route, value })
}

/// `POLICY` or `ROUTE=POLICY`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatencyArg {
    route: Option<Route>,
    latency: Latency,
}

impl FromStr for LatencyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (route, latency) = match text.contains('=') {
            true => {
                let (route, latency) = route_and_value(text, "write ROUTE=POLICY")?;
                (Some(route), latency)
            }
            false => (None, text),
        };
        let latency = latency.parse::<Latency>();
        Ok(LatencyArg {
            route,
            latency: latency.map_err(|error| error.to_string())?,
        })
    }
}
