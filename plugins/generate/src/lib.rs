//! `generate`: text generation over plain JSON, and from a command line.
//!
//! `generation` is what asks the host; the other modules are about what comes in and goes out.

mod answer;
mod arguments;
mod command;
mod generation;
mod grammar;
mod http;
mod prompt;
mod request;
mod sampling;

#[cfg(test)]
mod component_tests;

corral_sdk::handler!(http::handle);
corral_sdk::command!(command::run);
