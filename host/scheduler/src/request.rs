//! Requests and the ids that name them.

use crate::latency_targets::Latency;
use crate::retention::{Retention, WeakRetention};
use crate::{Time, Token};

/// The logits that a request needs after its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogitsKind {
    /// The highest ones usually suffice.
    TopK,
    /// All of them.
    #[default]
    All,
}

/// A request's id: never reused, and higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The unit of fairness: tenants share the engine equally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub u32);

/// A higher priority always goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u8);

/// What a request is computed with: the model alone, or one of its adapters, counted from 1.
/// A step computes with one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u8);

impl AdapterId {
    /// The model alone.
    pub const NONE: Self = Self(0);
    /// Most adapters of a model.
    pub const MAX: u8 = 16;
}

/// The requests that share prefixes: those of one prefix group with one [adapter](PrefixScope::with).
///
/// The time that a prompt takes tells whether an earlier request of the scope had the same prefix. So
/// a prefix group is one tenant, unless several opted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixScope(pub u64);

/// Bits below the adapter in a scope.
const PREFIX_GROUP_BITS: u32 = 48;

impl PrefixScope {
    /// The same prefix group with this adapter. Cells computed with one adapter are useless to another.
    #[must_use]
    pub fn with(self, adapter: AdapterId) -> Self {
        Self(self.prefix_group() | u64::from(adapter.0) << PREFIX_GROUP_BITS)
    }

    /// The adapter.
    pub fn adapter(self) -> AdapterId {
        AdapterId((self.0 >> PREFIX_GROUP_BITS) as u8)
    }

    /// The prefix group, whatever its adapter.
    pub fn prefix_group(self) -> u64 {
        self.0 & ((1 << PREFIX_GROUP_BITS) - 1)
    }
}

/// The requests that share a [`CellQuota`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuotaGroup(pub u32);

/// A bound on the cells that the running requests of a quota group hold together. A prefix that several of
/// them share counts for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellQuota {
    /// The group.
    pub group: QuotaGroup,
    /// Its cells, as far as this request is concerned.
    pub cells: u32,
}

/// One caller's generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// The tenant it is charged to.
    pub tenant: Tenant,
    /// The requests it shares prefixes with, and its adapter.
    pub scope: PrefixScope,
    /// Its priority.
    pub priority: Priority,
    /// Its targets for the gap between tokens and for the first token.
    pub latency: Latency,
    /// The prompt, at least one token. After a preemption also the tokens generated before it.
    pub tokens: Vec<Token>,
    /// Most tokens to generate; 0 for a [next-token request](Request::is_next_token).
    pub max_tokens: u32,
    /// When it arrived.
    pub arrived_at: Time,
    /// It expires if it still waits in the queue then.
    pub queue_until: Option<Time>,
    /// It expires then, wherever it is.
    pub deadline: Option<Time>,
    /// A bound on its quota group's cells.
    pub quota: Option<CellQuota>,
    /// Whether its owner may continue the sequence after this request.
    pub retention: WeakRetention,
    /// The sequence that it continues; kept from eviction until the request has started.
    pub continued: Option<Retention>,
    /// The logits it needs.
    pub logits: LogitsKind,
    /// The work done before a preemption. The default for a new request.
    pub progress: RequestProgress,
}

/// The work done for a request, over all times that it ran.
#[derive(Clone, Debug, Default)]
pub struct RequestProgress {
    /// Tokens it generated.
    pub generated: u32,
    /// Prompt tokens that the prefix cache saved.
    pub cached: u32,
    /// Tokens that were computed more than once.
    pub recomputed: u32,
    /// The furthest position that was ever computed.
    pub reached: u32,
    /// Preemptions.
    pub preempted: u32,
    /// Its caller returned too late, so the next step does not wait for it.
    pub late: bool,
}

impl Request {
    /// Tokens of its prompt.
    pub fn prompt_tokens(&self) -> u32 {
        length(&self.tokens) - self.progress.generated
    }

    /// Whether it ends with the distribution after its last token, and generates nothing.
    pub fn is_next_token(&self) -> bool {
        self.max_tokens == 0
    }

    /// The most cells it can need. The last generated token is never computed, so it needs none.
    pub fn cells_needed(&self) -> u32 {
        self.prompt_tokens()
            .saturating_add(self.max_tokens.saturating_sub(1))
    }
}

/// A number of tokens. More than `u32::MAX` were refused long before.
pub(crate) fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}
