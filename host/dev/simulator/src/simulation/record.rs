//! The input of a simulation and its results.

use corral_scheduler::{
    AdapterId, CellQuota, EnqueueError, Expired, Latency, LogitsKind, Priority, Tenant, Time,
};
use std::time::Duration;

/// A request, and how it behaves.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// When it arrives: the time since the start, or since the end of the arrival that it comes `after`.
    pub at: Time,
    /// Its client sends it once this arrival has ended.
    pub after: Option<usize>,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its priority.
    pub priority: Priority,
    /// How long its tokens may keep waiting.
    pub latency: Latency,
    /// Its adapter.
    pub adapter: AdapterId,
    /// Tokens of the prompt, at least 1, after those of `continued`.
    pub prompt: u32,
    /// Length of the prefix that all prompts of a family share, and the family.
    pub family: (u32, u64),
    /// It continues this many tokens of an earlier arrival's text, if that has finished.
    pub continued: Option<(usize, u32)>,
    /// Most tokens to generate; 0 for a next-token request.
    pub max_tokens: u32,
    /// Tokens after which it ends by itself, if those are fewer.
    pub ends_after: u32,
    /// Its longest time in the queue.
    pub queue_time: Option<Duration>,
    /// Its deadline, from its arrival.
    pub deadline_after: Option<Duration>,
    /// When the caller cancels it, from its arrival.
    pub cancels_after: Option<Duration>,
    /// Its prompt makes each step fail.
    pub poisoned: bool,
    /// Most drafts that are proposed after each of its steps; some are wrong.
    pub max_drafts: u32,
    /// Most drafts of the draft model; 0 if it does not draft.
    pub model_drafts: u32,
    /// How many of 100 drafts of the draft model are right.
    pub model_accuracy: u32,
    /// Most known tokens that follow some of the sampled ones.
    pub max_known_tokens: u32,
    /// A bound on the cells of its group.
    pub quota: Option<CellQuota>,
    /// For a next-token request: how often it returns with one more token, and how long after each result.
    pub returns: (u32, Duration),
    /// An external sampler picks its tokens and takes at most so long for each.
    pub external_sampler: Option<Duration>,
    /// The logits that it needs.
    pub logits: LogitsKind,
    /// After this many tokens the highest logits do not suffice.
    pub needs_all_logits_after: Option<u32>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It got all its tokens.
    Finished,
    /// The queue refused it.
    Refused(EnqueueError),
    /// It expired.
    Expired(Expired),
    /// Its caller canceled it.
    Canceled,
    /// The scheduler failed it.
    Failed,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct Record {
    /// How it ended.
    pub end: End,
    /// When it arrived.
    pub arrived: Time,
    /// When it first left the queue.
    pub admitted: Option<Time>,
    /// When it got each of its tokens.
    pub tokens: Vec<Time>,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Prompt tokens that were not computed.
    pub cached: u32,
    /// Tokens that were computed again.
    pub recomputed: u32,
    /// Accepted and rejected drafts.
    pub drafts: (u32, u32),
    /// When it ended.
    pub ended: Time,
    /// Requests of other tenants that started while it waited.
    pub overtaken: u32,
    /// Its failures alone since its last progress, as [`StrikeCount`](super::strikes::StrikeCount) counts them.
    pub strikes: u32,
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord {
    /// Running requests.
    pub running: usize,
    /// Decode rows.
    pub rows: u32,
    /// Drafts in them.
    pub drafts: u32,
    /// Other tokens.
    pub prefill: u32,
    /// Prompt tokens that were overlapped before it.
    pub overlapped: u32,
    /// Time of the draft model before it.
    pub drafting: Duration,
    /// Whether it ran while others waited for callers.
    pub is_overlap: bool,
    /// Whether it failed.
    pub failed: bool,
    /// Its adapter.
    pub adapter: AdapterId,
    /// Decoding requests of tenants that it left out.
    pub other_tenants: u32,
    /// How long it took, with the sampling of its rows and the rest of what was overlapped.
    pub took: Duration,
}
