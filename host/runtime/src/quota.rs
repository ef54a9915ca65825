//! Quotas: how many requests and tokens a deployment, tenant or API key may use.
//!
//! A request needs a [`QuotaPermit`] from all quotas that apply to it. The request is counted in all of them,
//! or in none if one has no free concurrent request, request or token. Before a generation starts, it reserves
//! the most tokens that it can use, its new tokens and all that it may generate; the unused rest is returned
//! when it ends. So concurrent generations together never exceed a limit.
//!
//! A refusal says how long to wait. For rates this is the time until the request fits if no other comes. A
//! running request may end at any time, so the wait for a concurrent request is a guess.
//!
//! Usage is kept in memory. A restarted process starts with unused quotas.

mod limits;
mod permit;
mod usage;
mod window;

pub use limits::{QuotaLimit, QuotaLimits};
pub use permit::QuotaPermit;
pub(crate) use permit::{ReserveError, TokenReservation};

use corral_engine::Metric;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use usage::{LimitExceeded, QuotaUsage};

/// The quota of a deployment, tenant or API key: its limits, and what was used.
///
/// [`Quota::with_limits`] returns a quota that shares the usage but applies its own limits.
#[derive(Debug)]
pub struct Quota {
    /// Locked after the usage, or alone.
    limits: Mutex<QuotaLimits>,
    shared: Arc<SharedUsage>,
}

/// The usage of quotas that share it, and their owner's name.
#[derive(Debug)]
struct SharedUsage {
    kind: &'static str,
    name: String,
    start: Instant,
    usage: Mutex<QuotaUsage>,
    requests: AtomicU64,
    tokens: AtomicU64,
    refusals: [AtomicU64; QuotaLimit::ALL.len()],
}

/// Why a quota refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct QuotaExceeded {
    /// The limit.
    pub limit: QuotaLimit,
    /// The quota's owner, such as `tenant alice`.
    pub owner: String,
    /// What the limit allows.
    pub allowed: u64,
    /// When to retry. None if the limit is 0.
    pub retry_after: Option<Duration>,
}

impl QuotaExceeded {
    fn text(&self) -> String {
        let Self { owner, allowed, .. } = self;
        let limit = match self.limit {
            QuotaLimit::Concurrent => "concurrent requests",
            QuotaLimit::RequestsPerMinute => "requests per minute",
            QuotaLimit::TokensPerRequest => "tokens per request",
            QuotaLimit::TokensPerMinute => "tokens per minute",
            QuotaLimit::TokensPerDay => "tokens per day",
        };
        match self.retry_after {
            Some(wait) => {
                let seconds = wait.as_secs_f64().ceil().max(1.0);
                format!(
                    "the {owner} has reached its limit of {allowed} {limit}; try again in {seconds} s"
                )
            }
            None => {
                format!("the {owner} is limited to {allowed} {limit}; ask the operator for more")
            }
        }
    }
}

impl Quota {
    /// A quota without usage. `kind` and `name`, such as `tenant` and `alice`, identify it in messages and
    /// metrics.
    pub fn new(kind: &'static str, name: impl Into<String>, limits: QuotaLimits) -> Arc<Self> {
        let shared = SharedUsage {
            kind,
            name: name.into(),
            start: Instant::now(),
            usage: Mutex::default(),
            requests: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            refusals: Default::default(),
        };
        Self::sharing(Arc::new(shared), limits)
    }

    /// A quota with other limits over the same usage.
    pub fn with_limits(&self, limits: QuotaLimits) -> Arc<Self> {
        Self::sharing(Arc::clone(&self.shared), limits)
    }

    fn sharing(shared: Arc<SharedUsage>, limits: QuotaLimits) -> Arc<Self> {
        shared.usage().track(&limits);
        Arc::new(Self {
            limits: Mutex::new(limits),
            shared,
        })
    }

    /// Whether both quotas count the same usage.
    pub fn shares_usage_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The limits.
    pub fn limits(&self) -> QuotaLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the limits, also for requests that hold a permit. Keeps the usage of windows that had a
    /// limit before.
    pub fn set_limits(&self, limits: QuotaLimits) {
        self.shared.usage().track(&limits);
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Usage and refusals, labeled with the quota's kind and name.
    pub fn metrics(&self) -> Vec<Metric> {
        let shared = &*self.shared;
        let labeled = |metric: Metric| {
            let metric = metric.with_label("kind", shared.kind);
            metric.with_label("name", &shared.name)
        };
        let mut metrics = vec![
            labeled(Metric::counter(
                "corral_quota_requests_total",
                "Requests that a quota admitted.",
                shared.requests.load(Ordering::Relaxed),
            )),
            labeled(Metric::counter(
                "corral_quota_tokens_total",
                "Tokens counted by a quota: appended to sequences, and generated.",
                shared.tokens.load(Ordering::Relaxed),
            )),
            labeled(Metric::gauge(
                "corral_quota_requests_running",
                "Running requests, by quota.",
                shared.usage().running().into(),
            )),
        ];
        for (limit, count) in self.refusals().filter(|(_, count)| *count > 0) {
            let refusals = labeled(Metric::counter(
                "corral_quota_refusals_total",
                "Requests and generations that a quota refused, by limit.",
                count,
            ));
            metrics.push(refusals.with_label("limit", limit.name()));
        }
        metrics
    }

    /// How often each limit refused a request or generation, over all quotas that share the usage.
    pub fn refusals(&self) -> impl Iterator<Item = (QuotaLimit, u64)> {
        let counts = QuotaLimit::ALL.iter().copied().zip(&self.shared.refusals);
        counts.map(|(limit, count)| (limit, count.load(Ordering::Relaxed)))
    }
}

impl SharedUsage {
    fn usage(&self) -> MutexGuard<'_, QuotaUsage> {
        // No method leaves the usage inconsistent if it panics.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn refuse(&self, exceeded: LimitExceeded) -> QuotaExceeded {
        let at = QuotaLimit::ALL
            .iter()
            .position(|limit| *limit == exceeded.limit);
        if let Some(count) = at.and_then(|at| self.refusals.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        QuotaExceeded {
            limit: exceeded.limit,
            owner: format!("{} {}", self.kind, self.name),
            allowed: exceeded.allowed,
            retry_after: exceeded.wait,
        }
    }
}
