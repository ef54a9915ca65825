//! The plugin runtime: WebAssembly components, one fresh instance per call unless a deployment lets calls use one in
//! turn, and their limits.
//!
//! A process has one [`Runtime`]; each loaded revision of a deployment is a [`Plugin`]. [`Plugin::handle`] answers an
//! HTTP request, [`Plugin::handle_message`] handles a message, [`Plugin::run`] runs a command. A plugin imports WASI 0.2 and 0.3, and `corral:inference` (`wit/`)
//! over [`corral_engine`]. Sockets are refused; files and outgoing requests need grants. [`LinkedComponents`] answer
//! some of a plugin's imports; the runtime composes them with the plugin into one component before it compiles that.
//!
//! Everything a plugin uses is limited: by the operator in [`Limits`], the rest in `runtime_config.rs`.
//! A plugin that exceeds a limit fails its own call with a [`CallError`] and affects no other call.
//!
//! The server passes requests in and streams bodies out. This crate opens no sockets but those of outgoing requests that
//! a deployment is granted (`outbound.rs`).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admission;
mod call;
mod call_context;
mod call_error;
mod call_outcome;
mod call_trace;
mod clocks;
mod compiled_plugin;
mod compiler;
mod component_instances;
mod component_source;
mod component_structure;
mod composition;
mod compute_turns;
mod counters;
mod cpu_meter;
mod denied_interfaces;
mod deployment;
mod deployment_calls;
mod deployment_config;
mod deployment_lookup;
mod deployment_share;
mod deployment_snapshots;
mod epoch_ticker;
mod folders;
mod framed_bodies;
mod free_cpu_time;
mod held_resources;
mod host;
mod http_bytes;
mod idle_instances;
mod initialization;
mod interfaces;
mod isolated_compiler;
mod key_values;
mod last_stderr_line;
mod linker;
mod logs;
mod message_subject;
mod messages;
mod models;
mod named_values;
mod outbound;
mod plugin;
mod plugin_error;
mod plugin_output;
mod poll_again;
mod quota;
mod random;
mod resource_limiter;
mod response_body;
mod runtime;
mod runtime_config;
mod sampling;
mod secrets;
mod serde_as_text;
mod shared_services;
mod state;
mod store;
#[cfg(test)]
mod test_support;
mod time_limits;
mod tokenization;
mod truncate;
mod use_count;
mod wasm_engine;

pub use call_error::CallError;
pub use call_outcome::CallCanceler;
pub use call_trace::{CallTrace, EmbeddingRecord, OutboundRequest, TraceHeaders};
pub use component_source::ComponentSource;
pub use composition::program::{ProgramError, compose_program, write_setting};
pub use counters::CallLimit;
pub use deployment::DeploymentState;
pub use deployment_lookup::{CallTarget, DeploymentLookup};
pub use folders::{Folder, Folders, MAX_FOLDERS, check_folder_name};
pub use initialization::Initialized;
pub use initialization::isolated::{INITIALIZE_JOB, MAX_INITIALIZE_TIME};
pub use isolated_compiler::{COMPILE_JOBS, MAX_COMPILE_TIME};
pub use last_stderr_line::LastLine;
pub use logs::{LogLevel, LogLine, Logs};
pub use message_subject::{Subject, SubjectError, SubjectPattern};
pub use messages::{Message, MessageError, MessageSender, PublishError, Publishing};
pub use named_values::Named;
pub use outbound::{OutboundGrant, OutboundUrl, OutboundUrlError};
pub use plugin::{ExitStatus, Plugin, Roles};
pub use plugin_error::PluginError;
pub use quota::{Quota, QuotaExceeded, QuotaLimit, QuotaLimits, QuotaPermit};
pub use response_body::{Body, PolledFrame};
pub use runtime::Runtime;
pub use runtime_config::{
    CallOptions, Limits, LinkedComponent, LinkedComponents, MAX_MIDDLEWARE, OutboundConfig,
    PluginConfig, Reuse, RuntimeConfig, SystemGrants, TlsSource,
};
pub use secrets::{MAX_SECRET_BYTES, MAX_SECRETS, Secret, Secrets, check_secret_name};
pub use wasm_engine::SetupError;
