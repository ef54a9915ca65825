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
    /// Leave out the rounds that would, by the time of the one before, not be through so long after the first one
    /// began. One is measured all the same.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) within: Option<Duration>,
}
