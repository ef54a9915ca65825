//! `corral:inference` for native programs: a Corral host computes, over HTTP.
//!
//! ```no_run
//! use corral_remote_client::{ConnectOptions, GenerateOptions, Session};
//!
//! # async fn run() -> Result<(), corral_remote_client::Error> {
//! let session = Session::connect("http://127.0.0.1:8080/sessions", &ConnectOptions::default()).await?;
//! let model = session.open_model(None).await?;
//! let prompt = model.sequence("12+7=").await?;
//! println!("{}", prompt.generate(&GenerateOptions::new(8)).await?.text().await?);
//! # Ok(())
//! # }
//! ```
//!
//! A task keeps an idle session open while the program's runtime runs. When the last value of the session is dropped, it
//! ends, and the host drops all its sequences and generations. `append`, `fork`, `truncate` and `generate` only send: their errors are those of the next
//! call that waits, or of the generation. Every wait is bounded by [`ConnectOptions::timeout`].
//!
//! The types are those of the session protocol, `plugins/session-protocol`; docs/remote.md describes it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod connection;
mod error;
mod generation;
mod grammar;
mod handle;
mod model;
mod sequence;
mod session;
mod tls;

pub use connection::ConnectOptions;
pub use error::Error;
pub use generation::{GenerateOptions, Generation};
pub use grammar::{Constraint, Matcher};
pub use model::Model;
pub use sequence::{Sequence, next_many};
pub use session::Session;
pub use session_protocol::{
    Candidate, Chunk, Distribution, Dry, Error as CallError, Finish, Grammar, ModelInfo, Outcome,
    Part, Penalties, Pooling, RemainingBudget, RequestCounts, Setting, Statistics, Token,
    TokenLogprobs,
};
