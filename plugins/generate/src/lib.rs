//! `generate`: text generation over plain JSON, and from a command line.
//!
//! What is about the world outside, the component's imports and exports, is in `component`; the
//! other modules are plain functions, which the unit tests run on the machine itself.
// Not forbid: the bindings in `component` are generated, with unsafe code.
#![deny(unsafe_code)]

mod answer;
mod arguments;
mod component;
mod fields;
mod grammar;
mod problem;
mod prompt;
mod request;
mod sampling;
mod strftime;
mod template;
