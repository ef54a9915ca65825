//! Write plugins for Corral in Rust.
//!
//! A plugin is a WebAssembly component that uses the host's language models. With this crate it is
//! an async function:
//!
//! ```standalone_crate
//! use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
//!
//! async fn complete(mut request: Request) -> Result<Response, Error> {
//!     let prompt = request.text().await?;
//!     let sequence = Model::open_default().await?.sequence()?;
//!     sequence.append(&prompt)?;
//!     let text = sequence.generate(&GenerateOptions::new(64))?.text().await?;
//!     Ok(Response::text(text))
//! }
//!
//! corral_sdk::handler!(complete);
//! #
//! # fn main() {
//! #     let script = corral_sdk::testing::Script::new().answers("12+7=", "19");
//! #     let answer = script.run(async {
//! #         complete(Request::post("/").with_body("12+7=")).await.unwrap().read().await
//! #     });
//! #     assert_eq!(answer, b"19");
//! # }
//! ```
//!
//! - [`Model`], [`Sequence`], [`GenerateOptions`] and [`Generation`] wrap `corral:inference`: the
//!   host runs the sampling loop ([`Sequence::generate`]), or the plugin samples each token
//!   ([`Sequence::next`]), for one sequence or many ([`next_many`]).
//! - [`mod@sampling`] has samplers for such loops; [`template`] turns chats into prompts.
//! - [`Request`], [`Response`] and [`handler!`] handle HTTP; [`Command`] and [`command!`] the
//!   command line.
//! - [`fields`] validates JSON objects and names the offending field.
//! - [`templating!`] and [`sampling!`] define plugins that are linked to other plugins; [`middleware!`] one that stands before a
//!   handler.
//! - [`messages`] handles messages with [`message_handler!`], and publishes them to other deployments.
//! - [`initialize!`] prepares the memory of all instances when the plugin is deployed.
//! - [`testing`] runs plugins natively against a scripted model.
#![warn(missing_docs)]
// Not `forbid`: the generated code in `bindings` is unsafe.
#![deny(unsafe_code)]

mod backend;
pub mod bindings;
pub mod budget;
pub mod command;
#[cfg(feature = "config")]
pub mod config;
pub mod constraint;
mod error;
pub mod fields;
mod generate_options;
mod generation;
pub mod http;
mod initialization;
#[cfg(feature = "key-values")]
mod key_values;
pub mod linked;
#[cfg(feature = "logging")]
pub mod log;
#[cfg(feature = "messages")]
pub mod messages;
pub mod middleware;
pub mod model;
mod next_token;
pub mod sampling;
mod sequence;
pub mod template;
#[cfg(any(not(target_arch = "wasm32"), feature = "scripted-host"))]
pub mod testing;

pub use bindings::inference::{Candidate, Chunk, Dry, Finish, Outcome, Penalties, TokenLogprobs};
pub use command::Command;
pub use constraint::{Constraint, Grammar, Matcher};
pub use error::{Error, Problem};
pub use generate_options::GenerateOptions;
pub use generation::Generation;
pub use http::{EventWriter, Request, Response};
#[cfg(feature = "key-values")]
pub use key_values::KeyValues;
pub use model::Model;
pub use next_token::{Distribution, DistributionPart, NextTokenRequest, Statistics};
pub use sequence::{Sequence, next_many};

/// Index into a model's vocabulary.
pub type Token = u32;

/// Compiles and runs the snippets of the authors' guide.
#[cfg(all(doctest, feature = "jinja", feature = "messages"))]
#[doc = include_str!("../../README.md")]
struct Guide;
