//! Arguments for loading and unloading models.

use super::parsers::seconds;
use clap::{Args, ValueEnum};
use corral_engine::ModelPoolSettings;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelPoolArgs {
    /// Models to load at startup; others load with their first request
    #[arg(long, value_enum, value_name = "all|first|none", hide_possible_values = true,
          default_value_t = Preload::First)]
    pub preload: Preload,
    /// Unload a model after this idle time, in seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub model_idle_timeout: Option<Duration>,
    /// Memory for all models, in MiB: idle ones are unloaded, oldest first [default: what the machine has]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub model_memory: Option<u64>,
}

// Doc comments on the values would make clap print the long form of --help.
/// Models to load at startup: all in the order given, the first, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preload {
    All,
    First,
    None,
}

impl Preload {
    /// How many of `models` to load.
    pub(crate) fn count(self, models: usize) -> usize {
        match self {
            Preload::All => models,
            Preload::First => models.min(1),
            Preload::None => 0,
        }
    }
}

impl ModelPoolArgs {
    pub(crate) fn settings(&self) -> ModelPoolSettings {
        ModelPoolSettings {
            memory: self.model_memory.map(|mebibytes| mebibytes << 20),
            idle: self.model_idle_timeout,
        }
    }
}
