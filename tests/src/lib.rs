//! Support for whole-program tests: the binary `corral`, its sockets, the demo model and real components.
//!
//! [`Corral`] is a server on free ports. Dropping it kills the process; a failing test prints its
//! stderr. [`run`] runs the command line once. `make test` builds what the tests need and passes
//! the paths; see [`artifacts`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api_keys;
pub mod artifacts;
pub mod authoring;
pub mod benches;
mod child;
mod client;
pub mod cluster;
mod command_line;
mod connection;
pub mod deployments;
mod example_cluster;
mod example_forms;
pub mod jobs;
pub mod linked_components;
mod load;
pub mod media;
mod metrics;
mod model_hub;
mod nats;
mod neighbors;
pub mod otlp_collector;
pub mod pictures;
mod proxy;
mod random_server;
pub mod recordings;
mod registry;
mod response;
#[path = "../../host/constraint/tests/support/validator.rs"]
pub mod schema;
mod seed;
mod server;
mod server_metrics;
mod stub_server;
mod suite;
mod sums;
mod tls;
mod upstream;
mod wasmtime;
mod watch;

pub use api_keys::{key_file, limited_key_file, new_key};
pub use child::{KilledOnDrop, http_agent, signal};
pub use client::{ENDLESS_TOKENS, MANY_CELLS};
pub use command_line::{
    RunOutput, run, run_command, run_plugin, run_with, scratch_dir, serve, utf8, words,
};
pub use connection::{BodySender, Connection, HttpVersion, PendingResponse, block_on};
pub use example_cluster::{ClusterHost, ClusterRun, free_ports};
pub use example_forms::{
    EXAMPLES_IN_ALL_LANGUAGES, EXAMPLES_IN_C, check_uncaught_errors, start_examples,
};
pub use load::{Counts, Load};
pub use metrics::{Histogram, Metrics, NOT_WORTH_WAITING};
pub use model_hub::{HUB_REPO, Hub, HubFile, HubRequest, HubState, Storage};
pub use nats::Nats;
pub use neighbors::{SetOnDrop, Times};
pub use proxy::Proxy;
pub use random_server::long_context;
pub use registry::Registry;
pub use response::{EventStream, Response, check_results, raw_exchange};
pub use seed::seed;
pub use server::{Corral, TIMEOUT, peak_bytes, wait_for, wait_until};
pub use stub_server::{StubRequest, serve_stub};
pub use suite::run_suite;
pub use sums::{RELIABLE_SUMS, Sum, concurrently, distinct_sums};
pub use tls::{Identity, TrustedRoot};
pub use upstream::Upstream;
pub use wasmtime::{Program, ServedProgram};
pub use watch::Watch;
