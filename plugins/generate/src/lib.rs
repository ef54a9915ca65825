//! `generate`: text generation over plain JSON, and from a command line.
//!
//! `generation` calls the host; the other modules parse requests and write responses.

mod arguments;
mod command;
mod constraint;
mod generation;
mod http;
mod prompt;
mod request;
mod response;
mod sampling;

#[cfg(test)]
mod component_tests;

corral_sdk::handler!(http::handle);
corral_sdk::command!(command::run);
