//! What comes to a simulation, and what it tells afterwards.

use corral_scheduler::{
    AdapterId, CellQuota, EnqueueError, Expired, LogitsKind, Priority, Tenant, Time,
};
use std::time::Duration;

/// A request that comes, and what becomes of it if nobody interferes.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// Whose.
    pub tenant: Tenant,
    /// How urgent.
    pub priority: Priority,
    /// With what it is computed.
    pub adapter: AdapterId,
    /// Tokens of the prompt, at least 1; those of `goes_on` come before them.
    pub prompt: u32,
    /// How many of them are the same for all of a family, and which family.
    pub family: (u32, u64),
    /// Its text goes on with so many tokens of an earlier one's, if that one has finished.
    pub goes_on: Option<(usize, u32)>,
    /// Most tokens it may generate; with 0 it ends with what may come next.
    pub max_tokens: u32,
    /// Tokens after which it ends by itself, if that is sooner.
    pub ends_after: u32,
    /// How long it waits at most.
    pub patience: Option<Duration>,
    /// How long it may take at all.
    pub time: Option<Duration>,
    /// The caller goes away so long after its arrival.
    pub leaves: Option<Duration>,
    /// Its prompt makes each step fail.
    pub poisoned: bool,
    /// Up to so many drafts are proposed after each of its steps; some are wrong.
    pub drafts: u32,
    /// Up to so many tokens are certain after some that are sampled.
    pub forced: u32,
    /// How many cells it may have together with others.
    pub share: Option<CellQuota>,
    /// Of one that generates nothing: it comes back so often with one token more, each time so long
    /// after it was told what may come next.
    pub comes_back: (u32, Duration),
    /// Its tokens are chosen elsewhere, which takes up to so long for each.
    pub asks: Option<Duration>,
    /// What it needs to see of logits.
    pub rows: LogitsKind,
    /// Where the highest are enough: they no longer are once it has generated so many tokens.
    pub unsettled: Option<u32>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It got all its tokens.
    Finished,
    /// It was not taken.
    Refused(EnqueueError),
    /// A time of its own ran out.
    Expired(Expired),
    /// Its caller went away.
    Left,
    /// It failed alone.
    GivenUp,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Record {
    /// How it ended.
    pub end: End,
    /// When it left the queue for the first time.
    pub admitted: Option<Time>,
    /// When each of its tokens was there.
    pub tokens: Vec<Time>,
    /// Tokens that it came with.
    pub prompt: u32,
    /// Tokens of its prompt that were not computed.
    pub cached: u32,
    /// Tokens that were computed again after a preemption.
    pub recomputed: u32,
    /// Drafts that were computed and were right, and those that were not.
    pub drafts: (u32, u32),
    /// When it ended.
    pub ended: Time,
    /// Requests of other tenants that were admitted while it waited.
    pub passed_by: u32,
    /// How often it failed alone since it last got on, in halves, as [`Blame`](super::blame::Blame) counts.
    pub blamed: u32,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Sequences that ran.
    pub running: usize,
    /// Generating rows.
    pub rows: u32,
    /// Drafts in them.
    pub drafts: u32,
    /// Prompt tokens.
    pub prefill: u32,
    /// Prompt tokens that ran ahead of it.
    pub ahead: u32,
    /// Whether it ran while those who could get on waited for others.
    pub meanwhile: bool,
    /// Whether nothing came of it.
    pub failed: bool,
    /// With what it was computed.
    pub adapter: AdapterId,
    /// How long it took, with the sampling of its rows and what was left of those ahead of it.
    pub took: Duration,
}
