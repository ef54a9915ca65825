//! How often a bench measures what it compares.

use super::super::{seconds, whole};
use clap::Args;
use std::time::Duration;

/// So many rounds, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Rounds; each measures all that is compared.
    #[arg(
        id = "rounds",
        long = "rounds",
        value_name = "N",
        default_value_t = 5,
        value_parser = whole(1..=1000)
    )]
    pub(crate) most: u64,
    #[command(flatten)]
    pub(crate) within: Within,
}

/// For how long they go on.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Within {
    /// Begin no round that would end later than this after the first one began, the one that warms up included, if it
    /// takes as long as the one before. One is measured in any case.
    #[arg(id = "within", long = "within", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
}
