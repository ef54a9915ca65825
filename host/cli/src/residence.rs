//! What the command line says about which models are in memory, and for how long.

use crate::arguments::seconds;
use clap::{Args, ValueEnum};
use corral_engine::ModelSettings;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct Residence {
    /// Which models are loaded before anything else is done; a broken file is an error then. Others are
    /// loaded when they are first asked for.
    #[arg(long, value_enum, default_value_t = Preload::First)]
    pub(crate) preload: Preload,
    /// Unload a model that nobody has used for so long; the next who asks for it waits until it is back.
    /// By default models stay.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) model_idle: Option<Duration>,
    /// Memory that all models together may take, weights and contexts. Those that nobody uses, the least
    /// recently used first, make room for others; by default when the machine runs short.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) model_memory: Option<u64>,
}

/// Which models are loaded at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preload {
    /// Every one, in the order given.
    All,
    /// The default one.
    First,
    /// None.
    None,
}

impl Preload {
    /// How many, of so many that there are.
    pub(crate) fn count(self, models: usize) -> usize {
        match self {
            Preload::All => models,
            Preload::First => models.min(1),
            Preload::None => 0,
        }
    }
}

impl Residence {
    /// For the engine.
    pub(crate) fn settings(&self) -> ModelSettings {
        ModelSettings {
            memory: self.model_memory.map(|mebibytes| mebibytes << 20),
            idle: self.model_idle,
        }
    }
}
