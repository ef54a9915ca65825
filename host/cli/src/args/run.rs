//! Arguments of `corral run`, and the limits of a call.

use super::linked::{LinkedArg, check_linked};
use super::models::ModelArgs;
use super::parsers::{seconds, whole};
use crate::Error;
use clap::Args;
use corral_engine::Latency;
use corral_runtime::OutboundUrl;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct RunArgs {
    /// Component that exports wasi:cli/run
    #[arg(value_name = "PLUGIN.wasm")]
    pub(crate) plugin: PathBuf,
    /// Arguments of the plugin
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,
    /// Linked component: templating=FILE or sampling.NAME=FILE; repeatable
    #[arg(long = "linked", value_name = "ROLE=FILE", help_heading = "Plugins")]
    pub(crate) linked: Vec<LinkedArg>,
    /// Where it may send HTTP requests to, e.g. https://api.example.com; repeatable
    #[arg(long = "outbound", value_name = "URL", help_heading = "Plugins")]
    pub(crate) outbound: Vec<OutboundUrl>,
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) limits: CallLimitArgs,
}

impl RunArgs {
    /// Finds errors that need no file access.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_linked(&self.linked)?;
        self.models.check()
    }
}

/// Limits of a plugin's calls.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits")]
pub struct CallLimitArgs {
    /// Seconds that a call may take [default: 3600 for serve, a day for run]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Option<Duration>,
    /// Seconds that a plugin may compute in a call [default: 10 for serve, a day for run]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) cpu_limit: Option<Duration>,
    /// Memory of a plugin in a call, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = whole(1..=4096))]
    pub(crate) memory_limit: u64,
    /// Largest request body, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = whole(1..=4_194_304))]
    pub(crate) body_limit: u64,
    /// Largest response body, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 262_144, value_parser = whole(1..=4_194_304))]
    pub(crate) response_limit: u64,
    /// Calls of a plugin that run at once, at most 224 (7/8 of the server's 256 instances)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1..=10_000))]
    pub(crate) max_calls: u64,
    /// Calls of a plugin that may wait; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(0..=1_000_000))]
    pub(crate) max_queued_calls: u64,
    /// Seconds that a generation may wait before it is refused [default: the time limit of its call]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) queue_time: Option<Duration>,
}

impl CallLimitArgs {
    /// The runtime's limits, with defaults for the time and the CPU time of a call.
    pub(crate) fn limits(&self, time: Duration, cpu: Duration) -> corral_runtime::Limits {
        // The parsers bound all numbers to what a 32-bit usize holds, except 4 GiB of memory.
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        corral_runtime::Limits {
            memory: size(self.memory_limit << 20),
            time: self.time_limit.unwrap_or(time),
            cpu: self.cpu_limit.unwrap_or(cpu),
            request_bytes: size(self.body_limit << 10),
            response_bytes: self.response_limit << 10,
            concurrent: size(self.max_calls),
            waiting_calls: size(self.max_queued_calls),
            generation_queue_time: self.queue_time,
            priority: 0,
            latency: Latency::default(),
            share_prefixes: false,
            key_value_bytes: 0,
            cells_percent: None,
        }
    }
}
