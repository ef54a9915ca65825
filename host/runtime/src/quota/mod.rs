//! Quotas: how much of the host somebody may use. A deployment, a tenant and an API key may each have
//! one, and a request has to pass all that concern it.
//!
//! At the door a [`Visit`] begins: every quota has to have a request, a place and a token left, or none
//! of them counts anything. A generation then *reserves* what it may come to, its new tokens and all
//! that it is allowed to generate, before it starts; what it did not need is given back when it ends.
//! So a budget is never passed, however many generations run, and it counts from the moment at which
//! something was asked for.
//!
//! A refusal says how long to wait: for rates, until what is asked for now is to be had if nobody else
//! comes. Nobody knows when a running request ends, so where only places are missing it is a guess.
//!
//! What was used is kept in memory: a process that is started again begins with full budgets.

mod book;
mod visit;
mod window;

pub use book::{Allowance, Limit};
pub use visit::{Quota, Refusal, Visit};
pub(crate) use visit::{Reservation, Unreserved};
