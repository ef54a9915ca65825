//! HTTP server in front of the plugin runtime.
//!
//! The *public* listener serves `/healthz`, `/readyz` and the routes of the deployments. The *admin*
//! listener serves `/metrics`, the status of the models, and the API that changes [`deployments`]. Both
//! accept connections before the models are loaded; until [`Server::serve`] provides the [`Services`],
//! every route answers 503.
//!
//! A request needs no task and no channel of its own: hyper polls the plugin's body directly. Every
//! resource that a client can occupy is bounded by [`HttpLimits`] or by the limits of the deployment.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod api_description;
mod api_keys;
mod clock;
mod connection_info;
mod cors;
mod deployment_lookup;
pub mod deployments;
mod file_watcher;
mod http_counters;
mod inherited_sockets;
mod json_response;
mod kv_events;
mod listener;
mod liveness;
mod memory_guard;
mod probes;
mod problem;
mod process_metrics;
mod prometheus;
mod proxy_headers;
mod public_metrics;
mod public_requests;
mod request_body;
mod request_id;
mod request_log;
mod request_policy;
mod response_policy;
mod routes;
mod running_requests;
mod server;
mod server_sockets;
mod services;
mod shutdown;
mod state;
mod telemetry;
mod tls;
mod triggers;

pub use admin::{AUDIT_TARGET, AdminToken, AdminTokenError};
pub use api_description::manifest_schema;
pub use api_keys::{ApiKeys, ApiKeysError, NewApiKey};
pub use cors::{Cors, CorsError, Origin};
pub use inherited_sockets::{InheritedSockets, InheritedSocketsError};
pub use kv_events::{KvEvents, ZmqAddress};
pub use listener::{BindError, HttpLimits};
pub use memory_guard::MemoryGuardConfig;
pub use problem::ErrorFormat;
pub use proxy_headers::TrustedProxies;
pub use request_policy::{Access, RequestPolicy};
pub use response_policy::StartingRoutes;
pub use routes::{Route, RouteError, RouteTable, RouteTaken};
pub use server::{Server, ServerOptions};
pub use server_sockets::ServerSockets;
pub use services::Services;
pub use shutdown::StopSignals;
pub use telemetry::{
    CollectorTls, LogEvent, LogValue, Telemetry, TelemetryOptions, TelemetrySettings,
    TelemetrySettingsError,
};
pub use tls::{Tls, TlsError};
pub use triggers::{CronEntry, JobSettings};
