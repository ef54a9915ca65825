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
pub use permit::{Quota, QuotaExceeded, QuotaPermit};
pub(crate) use permit::{ReserveError, TokenReservation};
