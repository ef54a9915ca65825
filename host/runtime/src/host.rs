//! Implements `corral:inference` (`wit/`) over the engine, `wasi:keyvalue`, `wasi:config`, `wasi:logging` and
//! `wasmcloud:messaging`, and those functions of other interfaces that replace wasmtime's.

mod budget;
mod clocks;
mod config;
mod constraints;
mod counted_sequence;
mod folders;
mod framed_body;
mod generation;
mod guest_sequence;
mod http_bytes;
mod images;
mod inference_async;
mod inference_sync;
mod key_values;
mod logging;
mod messages;
mod models;
mod next_token;
mod options;
mod random;
mod sampling;
mod sequence;
mod snapshots;
mod store_access;
mod waiting_functions;

use crate::counters::ResourceKind;
use crate::held_resources::Handles;
use crate::state::State;
use corral_engine::{Engine, Error};
use tokio::task::JoinError;
use wasmtime::component::{HasSelf, Linker, ResourceTableError};

pub(crate) mod bindings {
    //! Rust bindings of `corral:inference`.

    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "corral:inference/imports-host",
        imports: {
            "corral:inference/inference-sync": async | trappable,
            "corral:inference/inference-sync.generate": trappable,
            "corral:inference/inference-sync.[drop]generation": trappable,
            "corral:inference/models.[method]model.tokenize": async | trappable,
            "corral:inference/inference-async.generate": store | trappable,
            "corral:inference/inference-async.frame": store | trappable,
            "wasi:keyvalue/store": async | trappable,
            default: trappable,
        },
        trappable_error_type: {
            "corral:inference/types.error" => super::HostError,
            "wasi:keyvalue/store.error" => super::BucketError,
        },
        with: {
            "corral:inference/inference-sync.generation": super::SyncGeneration,
            "corral:inference/constraints.constraint": super::GuestConstraint,
            "corral:inference/constraints.matcher": super::GuestMatcher,
            "corral:inference/models.model": super::GuestModel,
            "corral:inference/inference.options": super::GuestOptions,
            "corral:inference/inference.sequence": super::GuestSequence,
            "wasi:keyvalue/store.bucket": super::Bucket,
        },
    });
}

pub(crate) use bindings::corral::inference::types as wit;
pub use constraints::{GuestConstraint, GuestMatcher};
pub use guest_sequence::GuestSequence;
pub use inference_sync::SyncGeneration;
pub use key_values::{Bucket, BucketError};
pub use options::GuestOptions;

/// Handles of each kind that an instance may hold.
const MAX_HANDLES: usize = 256;
/// Matchers that an instance may hold. Each may use tens of megabytes.
const MAX_MATCHERS: usize = 16;
/// Tokens that the sequences of an instance may hold, generated tokens excluded.
const MAX_TOKENS: usize = 4 << 20;

/// Images that an instance may append. Their embeddings take some kilobytes for each position.
const MAX_IMAGES: usize = 64;

/// A model that a guest opened.
pub struct GuestModel(Engine);

/// Links `corral:inference`, `wasi:keyvalue`, `wasi:config`, `wasi:logging` and `wasmcloud:messaging`.
///
/// Drafts are also linked under the version that they are drafts of, because a composition names the imports of its
/// components by that: wasmtime matches the version of a draft only exactly.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    use bindings::wasi::{config::store, keyvalue::store as key_values, logging::logging};
    bindings::ImportsHost::add_to_linker::<_, HasSelf<State>>(linker, count_host_call)?;
    let mut instance = linker.instance("wasi:keyvalue/store@0.2.0")?;
    key_values::add_to_linker_instance::<_, HasSelf<State>>(&mut instance, count_host_call)?;
    let mut instance = linker.instance("wasi:config/store@0.2.0")?;
    store::add_to_linker_instance::<_, HasSelf<State>>(&mut instance, count_host_call)?;
    let mut instance = linker.instance("wasi:logging/logging@0.1.0")?;
    logging::add_to_linker_instance::<_, HasSelf<State>>(&mut instance, count_host_call)
}

/// Links functions of the host.
type Link = fn(&mut Linker<State>) -> wasmtime::Result<()>;

/// Link functions in place of those of `wasmtime-wasi` and `wasmtime-wasi-http` with the same names.
pub(crate) const REPLACEMENTS: [Link; 8] = [
    clocks::link_p2,
    clocks::link_p3,
    random::link_p2,
    random::link_p3,
    folders::link_p2,
    folders::link_p3,
    http_bytes::link_p2,
    http_bytes::link_p3,
];

/// Links all [`REPLACEMENTS`].
pub(crate) fn replace_functions(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let linked = REPLACEMENTS.iter().try_for_each(|link| link(linker));
    linker.allow_shadowing(false);
    linked
}

/// Returns the data that a host function works on. Runs at each host call, and again each time that a call
/// which waits accesses the store.
fn count_host_call(state: &mut State) -> &mut State {
    state.counters.host_calls.increment();
    state
}

/// Counts a new handle, up to [`MAX_HANDLES`]. `name` is for the error.
fn take_handle(held: &mut Handles, kind: ResourceKind, name: &str) -> Result<(), wit::Error> {
    take_handle_of(MAX_HANDLES, held, kind, name)
}

/// Counts a new handle, up to `max`.
fn take_handle_of(
    max: usize,
    held: &mut Handles,
    kind: ResourceKind,
    name: &str,
) -> Result<(), wit::Error> {
    if held.counts.get(kind) >= max {
        return Err(wit::Error::Invalid(format!(
            "the plugin holds the maximum of {max} {name}; drop some"
        )));
    }
    held.counts.add(kind, 1);
    Ok(())
}

/// Why a host function failed.
pub enum HostError {
    /// An error for the guest.
    Guest(wit::Error),
    /// Ends the guest.
    Trap(wasmtime::Error),
}

type HostResult<T> = Result<T, HostError>;

fn invalid<T>(text: impl Into<String>) -> HostResult<T> {
    Err(wit::Error::Invalid(text.into()).into())
}

impl wit::Host for State {
    fn convert_error(&mut self, error: HostError) -> wasmtime::Result<wit::Error> {
        match error {
            HostError::Guest(error) => Ok(error),
            HostError::Trap(error) => Err(error),
        }
    }
}

impl From<wit::Error> for HostError {
    fn from(error: wit::Error) -> Self {
        Self::Guest(error)
    }
}

impl From<wasmtime::Error> for HostError {
    fn from(error: wasmtime::Error) -> Self {
        Self::Trap(error)
    }
}

impl From<ResourceTableError> for HostError {
    fn from(error: ResourceTableError) -> Self {
        Self::Trap(error.into())
    }
}

impl From<JoinError> for HostError {
    fn from(error: JoinError) -> Self {
        Self::Trap(error.into())
    }
}

impl From<Error> for HostError {
    fn from(error: Error) -> Self {
        Self::Guest(error.into())
    }
}

impl From<corral_engine::ConstraintError> for HostError {
    fn from(error: corral_engine::ConstraintError) -> Self {
        Error::from(error).into()
    }
}

impl From<corral_engine::sampling::Error> for HostError {
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
            Error::Overloaded {
                reason,
                retry_after,
            }
            | Error::QueueTimeout {
                reason,
                retry_after,
            } => Self::Refused(wit::Refusal {
                reason,
                retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
            }),
            Error::DeadlineExceeded => Self::Deadline,
            Error::ShuttingDown | Error::Canceled => Self::Cancelled,
            Error::Unsupported(text) => Self::Invalid(text),
            Error::NotFound(text) => Self::NotFound(text),
            Error::SnapshotsFull(text) => Self::NotGranted(text),
            Error::Failed(text) | Error::Snapshot(text) => Self::Failed(text),
        }
    }
}
