//! What is found at a rate.

use super::histogram::Histogram;
use corral_engine::scheduler::{Tally, Time};
use std::collections::BTreeMap;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub arrived: u64,
    pub admitted: u64,
    pub finished: u64,
    /// Refused: the queue was full, or the tenant's part of it.
    pub queue_full: u64,
    pub tenant_full: u64,
    /// For another reason.
    pub refused: u64,
    /// It was not their turn in time.
    pub impatient: u64,
    pub deadline: u64,
    pub left: u64,
    pub given_up: u64,
    pub steps: u64,
    pub failed_steps: u64,
    pub rows: u64,
    /// Tokens of those that finished: of their prompts, those found in the cache, and those that were
    /// computed again.
    pub prompt: u64,
    pub cached: u64,
    pub recomputed: u64,
    /// States lost for want of room.
    pub forgotten: u64,
    /// The most tokens that were ever put aside, and the most requests that waited.
    pub aside: u64,
    pub waiting: u64,
    /// Invariants that held.
    pub checks: u64,
}

impl Counts {
    /// Requests that ended, however.
    pub fn ended(&self) -> u64 {
        self.finished + self.left + self.given_up + self.deadline + self.turned_away()
    }

    /// Requests that were not served for want of room or time.
    pub fn turned_away(&self) -> u64 {
        self.queue_full + self.tenant_full + self.refused + self.impatient
    }
}

/// What a host may come up against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bound {
    /// All ids run, and somebody waits.
    Ids,
    /// Somebody waits though an id is free: for cells.
    Cells,
    /// A state was lost for want of room.
    Spill,
    Queue,
    TenantQueue,
    /// It was not somebody's turn in time.
    Patience,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Bound::Ids => "ids",
            Bound::Cells => "cells",
            Bound::Spill => "room for states",
            Bound::Queue => "the queue",
            Bound::TenantQueue => "a tenant's part of the queue",
            Bound::Patience => "patience",
        }
    }
}

/// What was found at a rate. Times are in seconds, and virtual but for `plan` and `applied`.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub rate: f64,
    /// Virtual time that it took.
    pub time: Time,
    pub counts: Counts,
    pub tally: Tally,
    /// From a request's arrival until it was admitted, and until its first token.
    pub queue: Histogram,
    pub first: Histogram,
    /// Between two tokens of a sequence.
    pub gaps: Histogram,
    pub steps: Histogram,
    /// What planning a step took the scheduler, and taking note of how it went.
    pub plan: Histogram,
    pub applied: Histogram,
    /// What it came up against, and when first.
    pub hit: BTreeMap<Bound, Time>,
}

impl Found {
    /// Nothing was found yet.
    pub fn new(rate: f64) -> Self {
        Self {
            rate,
            time: Time::ZERO,
            counts: Counts::default(),
            tally: Tally::default(),
            queue: Histogram::default(),
            first: Histogram::default(),
            gaps: Histogram::default(),
            steps: Histogram::default(),
            plan: Histogram::default(),
            applied: Histogram::default(),
            hit: BTreeMap::new(),
        }
    }

    /// Whether somebody was not served, or planning takes longer than what is planned.
    pub fn breaks(&self) -> bool {
        self.counts.turned_away() > 0 || self.plan_is_slow()
    }

    /// Whether planning takes longer than what is planned.
    pub fn plan_is_slow(&self) -> bool {
        self.plan.quantile(0.99) > self.steps.quantile(0.5)
    }
}
