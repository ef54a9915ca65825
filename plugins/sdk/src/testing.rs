//! A scripted host: tests a plugin's logic with `cargo test`, without WebAssembly or a model.
//!
//! ```
//! use corral_sdk::{Error, GenerateOptions, Model, testing::{HostCall, Script}};
//!
//! async fn sum(question: &str) -> Result<String, Error> {
//!     let sequence = Model::open_default().await?.sequence()?;
//!     sequence.append(question)?;
//!     sequence.generate(&GenerateOptions::new(8).stop("\n"))?.text().await
//! }
//!
//! let script = Script::new().answers("12+7=", "19");
//! assert_eq!(script.run(sum("12+7=")).unwrap(), "19");
//! assert_eq!(script.generations()[0].settings, ["max-tokens 8", "stop \"\\n\""]);
//!
//! let busy = Script::new().fails("open", Error::Deadline);
//! assert_eq!(busy.run(sum("12+7=")), Err(Error::Deadline));
//! assert_eq!(busy.calls(), [HostCall::Open(None)]);
//! ```
//!
//! The vocabulary consists of the 256 bytes, the control tokens `<|endoftext|>`, `<|im_start|>` and
//! `<|im_end|>`, and those that the script adds. The host always takes the most likely token and
//! ignores samplers; [`Script::generations`] records their settings.

#[cfg(feature = "config")]
#[cfg_attr(target_family = "wasm", allow(dead_code))]
mod config;
#[allow(missing_docs)]
mod constraint;
mod executor;
mod field_errors;
mod generation;
// For `corral-mock`.
#[allow(missing_docs)]
#[doc(hidden)]
pub mod host;
mod installed;
// A component with a script does not import values.
#[cfg(feature = "key-values")]
#[cfg_attr(target_family = "wasm", allow(dead_code))]
mod key_values;
#[cfg(feature = "logging")]
#[cfg_attr(target_family = "wasm", allow(dead_code))]
mod logging;
#[cfg(feature = "messages")]
#[cfg_attr(target_family = "wasm", allow(dead_code))]
mod messages;
#[allow(missing_docs)]
mod model;
#[allow(missing_docs)]
mod options;
mod sampler_harness;
mod script;
mod script_state;

#[cfg(test)]
mod tests;

pub use executor::block_on;
#[cfg(not(target_arch = "wasm32"))]
pub use executor::run_command;
pub use field_errors::{check_field_errors, check_ignored_fields};
pub use sampler_harness::SamplerHarness;
pub use script::Script;
#[cfg(feature = "logging")]
pub use script::ScriptedLog;
pub use script_state::{GenerateCall, HostCall};
