//! Deployments: their revisions, manifests, grants, linked components, jobs, messages and registries.

mod composition;
mod cron;
mod deploy_cli;
mod deployment_calls;
mod deployments;
mod folder_grants;
mod initialization;
mod instance_reuse;
mod jobs;
mod manifest_fields;
mod messages;
mod middleware;
mod outbound;
mod plugin_config;
mod registry;
mod registry_client;
mod revision_switch;
mod system_grants;
