//! The implementation of `wit/` over the engine.

mod blocking;
mod budget;
mod constraints;
mod framing;
mod generation;
mod looking;
mod models;
mod options;
mod reach;
mod sampling;
mod sequence;
mod snapshots;

use crate::state::State;
use corral_engine::{Engine, Error};
use std::sync::Arc;
use wasmtime::component::{HasSelf, Linker};

pub(crate) mod bindings {
    //! Rust types and traits made from `wit/`.

    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "corral:inference/imports-blocking",
        imports: {
            "corral:inference/blocking": async | trappable,
            "corral:inference/blocking.[static]generation.start": trappable,
            "corral:inference/blocking.[drop]generation": trappable,
            "corral:inference/models.[method]model.tokenize": async | trappable,
            "corral:inference/inference.[method]sequence.generate": store | trappable,
            "corral:inference/inference.frame": store | trappable,
            default: trappable,
        },
        with: {
            "corral:inference/blocking.generation": super::Generation,
            "corral:inference/constraints.constraint": super::Constraint,
            "corral:inference/constraints.matcher": super::Matcher,
            "corral:inference/models.model": super::Model,
            "corral:inference/inference.options": super::Options,
            "corral:inference/inference.sequence": super::Sequence,
        },
    });
}

pub(crate) use bindings::corral::inference::types as wit;
pub use blocking::Generation;
pub use constraints::{Constraint, Matcher};
pub(crate) use framing::Bodies;
pub use options::Options;
pub use sequence::Sequence;
pub(crate) use snapshots::{Snapshots, turns};

/// Handles of each kind that one instance may hold at once.
const HANDLES: u32 = 256;
/// Matchers that one instance may hold at once: each may take tens of megabytes.
const MATCHERS: u32 = 16;
/// Tokens that the sequences of one instance may hold, but for those that were generated.
const TOKENS: usize = 4 << 20;

/// What an instance holds of ours.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    models: u32,
    constraints: u32,
    matchers: u32,
    options: u32,
    sequences: u32,
    generations: u32,
    /// Tokens of these sequences.
    tokens: usize,
    /// Cloned for each row of logits that it waits for.
    rows: Arc<()>,
    /// Cloned for each stream of bytes that it was given of a generation.
    framings: Arc<()>,
    /// Held by whoever starts a sampling plugin to check its settings.
    check: Arc<tokio::sync::Mutex<()>>,
}

/// An opened model.
pub struct Model(Engine);

/// Links `corral:inference`.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    bindings::ImportsBlocking::add_to_linker::<_, HasSelf<State>>(linker, called)
}

/// What a host function works on: each call asks for it once, and those that wait may do so again.
fn called(state: &mut State) -> &mut State {
    state.tally.called();
    state
}

/// Takes one of `HANDLES` for a `what`.
fn take(held: &mut u32, what: &str) -> Result<(), wit::Error> {
    take_of(HANDLES, held, what)
}

/// Takes one of `most` for a `what`.
fn take_of(most: u32, held: &mut u32, what: &str) -> Result<(), wit::Error> {
    if *held >= most {
        return Err(wit::Error::Invalid(format!(
            "the plugin holds {most} {what}, the most it may; drop some"
        )));
    }
    *held += 1;
    Ok(())
}

/// What a call comes to: an answer, an error that the guest is told, or the end of its request.
type Answer<T> = wasmtime::Result<Result<T, wit::Error>>;

fn invalid<T>(text: impl Into<String>) -> Answer<T> {
    Ok(Err(wit::Error::Invalid(text.into())))
}

impl wit::Host for State {}

impl From<corral_engine::ConstraintError> for wit::Error {
    fn from(error: corral_engine::ConstraintError) -> Self {
        Error::from(error).into()
    }
}

impl From<corral_engine::sampling::Error> for wit::Error {
    fn from(error: corral_engine::sampling::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for wit::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(text) => Self::Invalid(text),
            Error::ContextFull { needed, limit } => {
                Self::ContextFull(wit::ContextLimit { needed, limit })
            }
            Error::Refused {
                reason,
                retry_after,
            }
            | Error::Overdue {
                reason,
                retry_after,
            } => Self::Refused(wit::Refusal {
                reason,
                retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
            }),
            Error::Deadline => Self::Deadline,
            Error::Cancelled => Self::Cancelled,
            Error::Unsupported(text) => Self::Invalid(text),
            Error::NotFound(text) => Self::NotFound(text),
            Error::SnapshotsFull(text) => Self::NotGranted(text),
            Error::Failed(text) | Error::Snapshot(text) => Self::Failed(text),
        }
    }
}
