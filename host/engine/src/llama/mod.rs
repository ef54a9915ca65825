//! The llama.cpp layer: the only place with unsafe code, beside the attention that it hands numbers to.
//!
//! [`Model`] is immutable after loading and shared between threads (llama.cpp's vocabulary and
//! weights are read-only); [`LlamaContext`] belongs to the engine thread, [`EmbeddingContext`] to
//! the embedding thread.

#![allow(unsafe_code)]

mod adapters;
mod ahead;
#[cfg(own_attention)]
mod attention;
mod batch;
mod chains;
mod context;
mod device;
mod embeddings;
pub mod gguf;
mod handle;
mod log;
#[cfg(test)]
mod memories;
mod model;
pub mod quantize;
#[cfg(any(test, feature = "reference"))]
#[cfg_attr(not(feature = "reference"), allow(dead_code))]
pub mod reference;
mod registry;
mod threads;

pub use chains::DeviceTop;
pub use context::LlamaContext;
pub use device::{Device, DeviceKind, devices};
pub use embeddings::{EmbeddingContext, EmbeddingSettings, EmbeddingTraits};
pub use handle::ContextSettings;
pub use log::{quiet_logs, take_buffers};
pub use model::{Model, check_magic};
pub use registry::{
    BackendFile, BackendStatus, backends, built_with, default_backends, load_backends,
};
