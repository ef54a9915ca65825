//! `generate`: text generation over plain JSON, and from a command line.
//!
//! What is about the world outside, the component's imports and exports, is in `component`; the
//! other modules are plain functions, which the unit tests run on the machine itself.
#![deny(unsafe_code)]
// Not forbid: the bindings in `component` are generated, with unsafe code.
// On the machine itself only the tests call what `component` calls.
#![cfg_attr(not(target_family = "wasm"), allow(dead_code))]

mod answer;
mod arguments;
mod problem;
mod prompt;
mod request;
mod strftime;
mod template;

#[cfg(target_family = "wasm")]
mod component;
