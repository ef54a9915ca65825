//! What plugins are called with: `corral run`, and what a call may use.

use super::{LinkArgument, Models, seconds, twice, whole};
use crate::complaint::Complaint;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The plugin: a component that exports wasi:cli/run.
    #[arg(value_name = "PLUGIN.wasm")]
    pub(crate) plugin: PathBuf,
    /// A component that the plugin is linked with: templating=FILE, or sampling.NAME=FILE; may be given
    /// several times.
    #[arg(long = "link", value_name = "LINK=FILE")]
    pub(crate) links: Vec<LinkArgument>,
    #[command(flatten)]
    pub(crate) models: Models,
    #[command(flatten)]
    pub(crate) limits: PluginLimits,
    /// What the plugin gets as its arguments.
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,
}

impl Run {
    /// What can be known to be wrong without touching a file.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        if let Some(link) = twice(&self.links) {
            let told = format!("--link names {link} twice; leave one of them away");
            return Err(Complaint::Usage(told));
        }
        self.models.check()
    }
}

/// What one call of a plugin may use.
#[derive(Args, Debug)]
pub(crate) struct PluginLimits {
    /// Seconds that a call may take; for `serve` 60 unless said otherwise, for `run` a day.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time_limit: Option<Duration>,
    /// Seconds that a plugin may compute in a call, waiting not counted; for `serve` 10 unless
    /// said otherwise, for `run` a day.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) cpu_limit: Option<Duration>,
    /// Memory that a plugin may have in a call.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = whole(1..=4096))]
    pub(crate) memory_limit: u64,
    /// Largest request body, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 8192, value_parser = whole(1..=4_194_304))]
    pub(crate) body_limit: u64,
    /// Largest response body, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 262_144, value_parser = whole(1..=4_194_304))]
    pub(crate) response_limit: u64,
    /// Calls of a plugin that run at once; at most 224, so that some of the process's 256 instances are
    /// left for others.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1..=10_000))]
    pub(crate) calls: u64,
    /// Calls of a plugin that wait for their turn; further ones are told to come back.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(0..=1_000_000))]
    pub(crate) queue: u64,
    /// Seconds that a generation may wait for its turn before it is refused; by default as long as
    /// its call has time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) queue_time: Option<Duration>,
}

impl PluginLimits {
    /// For the runtime; calls end after `time` unless the command line says otherwise.
    pub(crate) fn for_calls(&self, time: Duration, cpu: Duration) -> corral_runtime::Limits {
        // All numbers are bounded by their parsers to what fits any usize of 32 bits or more, but
        // for 4 GiB on 32 bits, where less is all there is.
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        corral_runtime::Limits {
            memory: size(self.memory_limit << 20),
            time: self.time_limit.unwrap_or(time),
            cpu: self.cpu_limit.unwrap_or(cpu),
            request_bytes: size(self.body_limit << 10),
            response_bytes: self.response_limit << 10,
            concurrent: size(self.calls),
            queue: size(self.queue),
            queue_time: self.queue_time,
            priority: 0,
            share_prefixes: false,
            cells_percent: None,
        }
    }
}
