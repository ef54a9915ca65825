//! Hosts that share deployments and jobs through NATS. `cluster_load` has a binary of its own.

mod cluster;
mod cluster_failures;
mod cluster_jobs;
mod cluster_routers;
mod cluster_store;
