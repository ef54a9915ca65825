//! corral-server: HTTP in front of the runtime.
//!
//! Two listeners. The *public* one has `/healthz`, `/readyz` and the plugins' routes; the *admin*
//! one, meant for loopback, has `/metrics`, a view of what goes on in the models, and the API that
//! changes [`deployments`]. Both are up before
//! the models are, so that whoever watches the process can tell "loading" from "dead"; until
//! [`Server::open`] hands over the [`House`], every route is answered by 503.
//!
//! A request costs no task and no channel: hyper polls the plugin's body itself. What a client can
//! make the server keep is bounded: connections by a semaphore, headers by size and time, request
//! bodies by the plugin's limit and by how long nothing comes, and a reader that does not read by the
//! stall limit.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod admin;
mod changes;
pub mod deployments;
mod house;
mod keys;
mod listener;
mod metrics_text;
mod models;
mod probes;
mod problem;
mod public;
mod request_body;
mod routes;
mod sequences;
mod server;
mod shutdown;
mod stall;
mod terms;
mod tls;
mod traffic;

pub use admin::{Token, TokenError};
pub use house::House;
pub use keys::{Keys, KeysError, NewKey};
pub use listener::{BindError, Limits};
pub use problem::ErrorFormat;
pub use routes::{Prefix, PrefixError, RouteTaken, Routes};
pub use server::{Front, Listeners, Server};
pub use shutdown::{ReloadSignals, StopSignals};
pub use terms::{Access, Terms};
pub use tls::{Tls, TlsError};
