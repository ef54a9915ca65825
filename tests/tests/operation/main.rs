//! What operators use: the command line, its configuration, the admin API and its console, logs and metrics.

mod admin_api;
mod admin_client;
mod admin_socket;
mod cli;
mod config_file;
mod console;
mod console_browser;
mod doctor;
mod logs;
mod monitoring;
mod service_manager;
mod status;
mod telemetry;
