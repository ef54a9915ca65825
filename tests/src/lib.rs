//! Drives the real thing: the binary `corral`, its sockets, the demo model and real components.
//!
//! [`Corral`] is a server of a test's own on free ports; it is killed when the test lets go of it,
//! and what it wrote to stderr is shown when the test fails. [`run`] is one run of the command line.
//! `make test` builds what the tests need and says where it is; see [`artifacts`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod artifacts;
pub mod benches;
mod client;
mod command_line;
pub mod deployments;
mod http;
mod metrics;
mod neighbours;
mod random;
pub mod roles;
pub mod schema;
mod server;
mod sums;
mod tls;

pub use client::{Client, Reply, Rest, Version, block_on};
pub use command_line::{Ended, run, run_within, scratch_folder};
pub use http::{Answer, Stream, raw_exchange};
pub use metrics::{Distribution, Metrics};
pub use neighbours::Done;
pub use random::Random;
pub use server::{Corral, ENDLESS, MANY_CELLS, PATIENCE};
pub use sums::{SURE, Sum, at_once, some_sums};
pub use tls::{Identity, Trust};
