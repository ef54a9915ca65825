//! Plugins for Corral in Rust.
//!
//! A plugin is a WebAssembly component that asks the host for a model and decides what to do with it. With
//! this crate it is an async function:
//!
//! ```standalone_crate
//! use corral_sdk::{Error, Generate, Model, Request, Response};
//!
//! async fn complete(mut request: Request) -> Result<Response, Error> {
//!     let prompt = request.text().await?;
//!     let sequence = Model::first().await?.sequence()?;
//!     sequence.append(&prompt)?;
//!     let text = sequence.generate(&Generate::new(64))?.text().await?;
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
//! - [`Model`], [`Sequence`], [`Generate`] and [`Generation`] are the three heights of `corral:inference`:
//!   the host runs the loop ([`Sequence::generate`]), the plugin does ([`Sequence::next`]), or it does so
//!   for many sequences at a time ([`next_many`]).
//! - [`mod@sampling`] and [`template`] are what such loops and chats need.
//! - [`Request`], [`Response`] and [`handler!`] are the plugin's side of HTTP; [`Command`] and
//!   [`command!`] its command line.
//! - [`fields`] reads JSON member by member, and names what is wrong.
//! - [`templating!`] and [`sampling!`] make plugins that are linked to others.
//! - [`testing`] runs all of it against a script, on the machine itself.
#![warn(missing_docs)]
// Not forbid: the bindings in `raw` are generated, with unsafe code.
#![deny(unsafe_code)]

mod backend;
pub mod budget;
pub mod command;
pub mod constraint;
mod error;
pub mod fields;
mod generate;
mod generation;
pub mod http;
mod look;
pub mod model;
pub mod raw;
pub mod role;
pub mod sampling;
mod sequence;
pub mod template;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use command::Command;
pub use constraint::{Constraint, Grammar, Matcher};
pub use error::{Error, Problem};
pub use generate::Generate;
pub use generation::Generation;
pub use http::{Events, Request, Response};
pub use look::{Distribution, Look, Statistics, View};
pub use model::Model;
pub use raw::inference::{Candidate, Chunk, Dry, Finish, Outcome, Penalties, TokenLogprobs};
pub use sequence::{Sequence, next_many};

/// Index into a model's vocabulary.
pub type Token = u32;

/// The snippets of the authors' guide compile, and do what it says.
#[cfg(all(doctest, feature = "jinja"))]
#[doc = include_str!("../../README.md")]
struct Guide;
