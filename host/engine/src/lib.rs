//! The engine: everything that touches the model.
//!
//! One OS thread per loaded model owns llama.cpp's context. It takes commands from a bounded
//! channel, asks the [scheduler](corral_scheduler) for the next step, decodes it, samples a token for each row
//! that wants one, and puts tokens and text into the mailbox of each sequence. Nothing else ever
//! touches the context, and no lock is held across a decode.
//!
//! This crate knows neither WASM nor HTTP. `corral-llama` holds the bindings to llama.cpp.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod bell;
mod chooser;
mod config;
mod delivery;
mod device_placement;
mod embedding;
mod engine;
mod error;
mod generation;
mod look;
mod lookup;
mod memory_estimate;
mod metrics;
mod model_pool;
mod places;
mod processor;
mod raw;
mod reply;
#[cfg(test)]
mod sampler_reference;
mod sequence;
mod store;
pub mod text;
mod view;
mod vocabulary;
mod worker;

pub use backend::{Backend, DecodeError, LogitsCopied, SaveError, TokenInput};
pub use chooser::{Choice, Chooser, Choosers, Desk, Shown, Wanted};
pub use config::{Config, DeviceSampling, ModelInfo};
pub use corral_constraint::{Constraint, Error as ConstraintError, Grammar, Matcher};
pub use corral_llama::{
    BackendFile, BackendStatus, Device, DeviceKind, KvType, LlamaError, LoadProgress, backends,
    built_with, default_backend_dir, devices, load_backends,
};
pub use corral_sampling::{self as sampling, Sampler, Statistics, TokenLogprobs};
pub use corral_scheduler::{
    AdapterId, EntryId, Overlap, PrefillPolicy, PrefixScope, Priority, RequestId, RequestState,
    Retention, SeqId, Tenant, WeakRetention,
};
pub use delivery::Generation;
pub use device_placement::{DeviceSelection, GpuLayers, PlacementOptions};
pub use embedding::{
    EmbedOptions, Embedding, EmbeddingConfig, EmbeddingInfo, MAX_EMBED_INPUTS, MAX_EMBED_NUMBERS,
    MAX_EMBED_TOKENS, Pooling, Vectors,
};
pub use engine::Engine;
pub use error::{Error, LoadError};
pub use generation::{
    Caller, Chunk, Finish, MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS, Options, Outcome, Share,
};
pub use look::{Distribution, Look, MAX_CANDIDATES, Show};
pub use metrics::{Kind, Metric};
pub use model_pool::{
    ModelLease, ModelPool, ModelPoolSettings, ModelSize, ModelState, ModelStatus, OpenError,
    OpenModel, machine_memory,
};
pub use raw::Raw;
pub use reply::Reply;
pub use sequence::Sequence;
pub use store::snapshot::{
    Entry as SnapshotEntry, Error as SnapshotError, Limits as SnapshotLimits, Snapshots,
};
pub use view::{EntryStatus, RequestStatus, SchedulerCounters, View};

/// Index into a model's vocabulary.
pub type Token = u32;
