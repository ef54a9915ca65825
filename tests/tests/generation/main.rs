//! Generation: models, their adapters, sampling by the host and by plugins, and the prefix cache.

mod adapters;
mod attention;
mod blocking_guests;
mod draft_model;
mod generate;
mod guest_sampling;
mod kv_events;
mod linked_components;
mod model_pull;
mod models;
mod prefix_disk;
mod sampling;
