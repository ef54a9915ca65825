//! The runtime: plugins as WebAssembly components, an instance for each call, and what an instance
//! may do.
//!
//! A [`Runtime`] is one for the process, a [`Plugin`] one for each component, and an instance lives
//! for one call: [`Plugin::handle`] for an HTTP request, [`Plugin::run`] for a command. What a plugin
//! imports is linked once: WASI 0.2 and 0.3 without sockets, files, environment or outbound
//! requests, and `corral:inference` (`wit/`) over [`corral_engine`]. A plugin may be linked with others that
//! answer some of its imports ([`Links`]): they are made one component before that is compiled.
//!
//! Everything that a plugin might take too much of is bounded: [`Limits`] by the operator, the rest
//! in `settings.rs`. Whatever a plugin does, its own call gets a clear [`Failure`], and nobody else's.
//!
//! This crate knows no sockets: the server hands requests in and streams bodies out.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod account;
mod admission;
mod again;
mod body;
mod bounds;
mod call;
mod compiler;
mod denied;
mod engine;
mod failure;
mod host;
mod limiter;
mod link;
mod linker;
mod logs;
mod meter;
mod metrics;
mod models;
mod names;
mod outbound;
mod output;
mod plugin;
mod quota;
mod runtime;
mod sampling;
mod settings;
mod soundness;
mod state;
mod store;
mod tally;
mod ticker;
mod validate;

pub use account::Account;
pub use body::{Body, Polled};
pub use engine::Error;
pub use failure::Failure;
pub use logs::{LogLine, Logs};
pub use plugin::{Exit, Plugin, Roles};
pub use quota::{Allowance, Limit, Quota, Refusal, Visit};
pub use runtime::{Runtime, Source};
pub use settings::{Call, Limits, Link, Links, Settings, Terms};
pub use tally::Bound;
pub use validate::PluginError;
