//! The implementation of `wit/` over the engine.

mod constraints;
mod generation;
mod inference;
mod models;

use crate::state::State;
use corral_engine::{Engine, Error};
use wasmtime::component::{HasSelf, Linker};

pub(crate) mod bindings {
    //! Rust types and traits made from `wit/`.

    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "corral:inference/imports",
        imports: {
            "corral:inference/models.[method]model.tokenize": async | trappable,
            "corral:inference/inference.[method]sequence.generate": store | trappable,
            default: trappable,
        },
        with: {
            "corral:inference/constraints.constraint": super::Constraint,
            "corral:inference/models.model": super::Model,
            "corral:inference/inference.options": super::Options,
            "corral:inference/inference.sequence": super::Sequence,
        },
    });
}

pub(crate) use bindings::corral::inference::types as wit;
pub use constraints::Constraint;
pub use inference::{Options, Sequence};

/// Handles of each kind that one instance may hold at once.
const HANDLES: u32 = 256;
/// Tokens that one instance may have appended to the sequences that it holds.
const TOKENS: usize = 4 << 20;

/// What an instance holds of ours.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    models: u32,
    constraints: u32,
    options: u32,
    sequences: u32,
    /// Tokens appended to these sequences.
    tokens: usize,
}

/// An opened model.
pub struct Model(Engine);

/// Links `corral:inference`.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    bindings::Imports::add_to_linker::<_, HasSelf<_>>(linker, |state| state)
}

/// Takes one of `HANDLES` for a `what`.
fn take(held: &mut u32, what: &str) -> Result<(), wit::Error> {
    if *held >= HANDLES {
        return Err(wit::Error::Invalid(format!(
            "the plugin holds {HANDLES} {what}, the most it may; drop some"
        )));
    }
    *held += 1;
    Ok(())
}

impl wit::Host for State {}

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
            } => Self::Refused(wit::Refusal {
                reason,
                retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
            }),
            Error::Deadline => Self::Deadline,
            Error::Cancelled => Self::Cancelled,
            Error::Unsupported(text) | Error::NotFound(text) | Error::SnapshotsFull(text) => {
                Self::Invalid(text)
            }
            Error::Failed(text) | Error::Snapshot(text) => Self::Failed(text),
        }
    }
}
