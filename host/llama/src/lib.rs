//! Safe bindings to llama.cpp: models, contexts, GGUF files, devices and adapters.
//!
//! This crate and `corral-attention` hold all unsafe code of the host. [`Model`] is immutable after loading and
//! shared between threads. [`LlamaContext`] and [`EmbeddingContext`] belong to one thread each, which may change.
//!
//! llama.cpp ends the process on many wrong arguments: unknown sequence ids and tokens, batches that are too large,
//! malformed files. Every call here checks its arguments first.
//!
//! The crate uses llama.cpp's vocabulary and knows no scheduler, no sampling and no other crate of the host.

#![warn(missing_docs)]

mod adapter;
#[cfg(own_attention)]
mod attention;
mod backend_status;
mod backends;
mod batch;
mod c_heap;
mod context;
mod context_settings;
mod device;
mod device_top_k;
mod embedding;
mod error;
mod ggml;
pub mod gguf;
mod image_rows;
mod kv_type;
mod load_observer;
mod load_progress;
mod log;
mod media_encoder;
mod model;
pub mod quantize;
mod raw_context;
mod reference_samplers;
mod run_queue_delay;
mod step_output;
mod thread_pool;

pub use backend_status::{BackendStatus, backends, built_with};
pub use backends::{BackendFile, default_backend_dir, load_backends};
pub use batch::TokenInput;
pub use c_heap::{HeapUsage, heap_usage, limit_free_memory, release_free_memory};
pub use context::LlamaContext;
pub use context_settings::ContextSettings;
pub use device::{Device, DeviceKind, DevicePlacement, devices};
pub use device_top_k::DeviceTopK;
pub use embedding::{EmbeddingContext, EmbeddingSettings, EmbeddingTraits};
pub use error::{DecodeError, LlamaError, SaveError};
pub use image_rows::{IMAGE_TOKENS, ImageRows, ImageTable};
pub use kv_type::KvType;
pub use load_progress::{LoadGate, LoadProgress, LoadStage};
pub use log::take_buffer_sizes;
pub use media_encoder::{ImagePart, MediaEncoder};
pub use model::{FileAccess, Model, check_magic};
pub use reference_samplers::ReferenceChain;
pub use run_queue_delay::queue_delay;
pub use step_output::{LogitsCopied, Output};

/// Index into a model's vocabulary.
pub type Token = u32;
/// A sequence of a context, from 0.
pub type SeqId = i32;
