//! A scripted engine: a plugin's logic under `cargo test`, without WebAssembly and without a model.
//!
//! ```
//! use corral_sdk::{Error, Generate, Model, testing::{Call, Script}};
//!
//! async fn sum(question: &str) -> Result<String, Error> {
//!     let sequence = Model::first().await?.sequence()?;
//!     sequence.append(question)?;
//!     sequence.generate(&Generate::new(8).stop("\n"))?.text().await
//! }
//!
//! let script = Script::new().answers("12+7=", "19");
//! assert_eq!(script.run(sum("12+7=")).unwrap(), "19");
//! assert_eq!(script.generations()[0].settings, ["max-tokens 8", "stop \"\\n\""]);
//!
//! let busy = Script::new().fails("open", Error::Deadline);
//! assert_eq!(busy.run(sum("12+7=")), Err(Error::Deadline));
//! assert_eq!(busy.calls(), [Call::Open(None)]);
//! ```
//!
//! Its vocabulary is the 256 bytes, then the control tokens `<|endoftext|>`, `<|im_start|>` and
//! `<|im_end|>`, then those that the script adds. It always takes the likeliest token, whatever the
//! samplers say; what they were told is in [`Script::generations`].

mod bench;
pub(crate) mod engine;
mod generating;
mod grammar;
mod options;
mod run;
mod script;
mod state;

#[cfg(test)]
mod tests;

pub use bench::Bench;
pub use run::{block_on, run_command};
pub use script::Script;
pub use state::{Call, Generated};
