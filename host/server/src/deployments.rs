//! Deployments: their storage, their changes, and the table that serves requests.
//!
//! [`Store`] persists components and revisions and knows neither HTTP nor plugins. [`Manifest`] is an author's
//! description of a deployment. [`Deployments`] serves: requests read its table, and changes replace the
//! table as a whole. A change is compiled without blocking requests, stored, and then activated. A request
//! keeps the revision that it started on, which is freed after its last request. In a [cluster], all hosts apply the
//! changes that any of them makes.

pub mod artifact;
mod bounded_number;
mod capacity;
mod change_error;
mod cluster;
mod deployment_change;
mod deployment_context;
mod deployment_store;
mod deployment_table;
mod digest;
mod grants;
mod linked_components;
mod manifest;
mod manifest_error;
mod name;
mod outbound_entry;
mod plugin_loading;
mod refused_compilations;
mod requested_latency;
mod requested_limits;
mod requested_reuse;
mod restore;
mod revision;
mod serving_deployment;
mod store;
mod stored_deployment;
#[cfg(test)]
mod test_support;

pub use bounded_number::{BoundedInteger, BoundedSeconds};
pub(crate) use change_error::ChangeError;
pub use cluster::{
    ClusterConfig, ClusterServers, ClusterServersError, HostDeployment, HostStatus, JetStreamStore,
};
pub(crate) use cluster::{MAX_MESSAGE_BYTES, NatsConnection, with_jitter};
pub(crate) use deployment_context::DeploymentContext;
pub use deployment_store::{DeploymentStore, StoreFuture};
pub use deployment_table::Deployments;
pub(crate) use deployment_table::WeakDeployments;
pub use digest::{Digest, DigestError};
pub use grants::Grants;
pub use linked_components::{LinkedComponent, LinkedComponents, check_sampler_name};
pub use manifest::Manifest;
pub use manifest_error::ManifestError;
pub use name::{DeploymentName, DeploymentNameError};
pub use outbound_entry::OutboundEntry;
pub use requested_limits::RequestedLimits;
pub use revision::{DeploymentRecord, MAX_WEIGHT, Revision, TrafficShare};
pub(crate) use serving_deployment::{ServingDeployment, ServingRevision, Unavailable};
pub use store::{Store, StoreError, StoreLimits};
pub use stored_deployment::{Entry, NewRevision, StoredDeployment};
