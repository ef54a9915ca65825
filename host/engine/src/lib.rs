//! The engine: one thread per loaded model owns llama.cpp's context and generates for all callers.
//!
//! The engine thread ([`worker`]) takes commands from a bounded channel, asks the [scheduler](corral_scheduler) for the
//! next step, decodes it, samples a token for each row with output, and appends tokens and text to the mailbox of each
//! request. No other thread touches the context, and no lock is held across a decode.
//!
//! This crate knows neither WASM nor HTTP. `corral-llama` holds the bindings to llama.cpp.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod benchmark_context;
mod block_on;
mod cache_change_feed;
mod caller;
mod compute_threads;
mod cpu_time;
mod device_placement;
mod draft_model;
mod embedding;
mod engine;
mod engine_waker;
mod error;
mod external_sampler;
mod file_identity;
mod generate_options;
mod generation;
mod generation_trace;
mod histogram;
mod kv_cache_size;
mod machine_memory;
mod media;
mod memory_estimate;
mod metric_sample;
mod metrics;
mod model_check;
mod model_config;
mod model_file;
mod model_pool;
mod next_token;
mod open_request_limits;
mod prefix_files;
mod prompt_lookup;
mod reader_wake_batch;
mod reader_wake_queue;
mod reply;
mod request_observer;
mod sequence;
mod snapshot;
mod split_files;
mod state_format;
mod status;
mod swap_store;
mod text_decoder;
mod vocabulary;
mod worker;

pub use cache_change_feed::{CACHE_BLOCK, CacheFeed, CacheUpdate, OwnedChange};
pub use caller::{Caller, CellShare, PrefixOwner};
pub use corral_constraint::{Constraint, Error as ConstraintError, Grammar, Matcher};
pub use corral_llama::{
    BackendFile, BackendStatus, Device, DeviceKind, FileAccess, HeapUsage, KvType, LlamaError,
    LoadProgress, backends, built_with, default_backend_dir, devices,
    gguf::has_magic as has_gguf_magic, heap_usage, limit_free_memory, load_backends,
    release_free_memory,
};
pub use corral_sampling::{self as sampling, Sampler, Statistics, TokenLogprobs};
pub use corral_scheduler::{
    AdapterId, CacheChange, EntryId, Latency, LatencyError, Overlap, PrefillPolicy, PrefixHolder,
    PrefixScope, Priority, RequestId, RequestState, Retention, SeqId, Tenant, WeakRetention,
};
pub use device_placement::{DeviceSelection, GpuLayers, PlacementOptions};
pub use embedding::{
    EmbedOptions, Embedding, EmbeddingConfig, EmbeddingInfo, MAX_EMBED_INPUTS, MAX_EMBED_NUMBERS,
    MAX_EMBED_TOKENS, Pooling, Vectors,
};
pub use engine::Engine;
pub use error::{Error, LoadError};
pub use external_sampler::{
    ExternalSampler, ExternalSamplerFactory, SamplingReply, SamplingRequest, SamplingRequestOptions,
};
pub use generate_options::{GenerateOptions, MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS};
pub use generation::{Chunk, FinishReason, Generation, Outcome};
pub use generation_trace::{GenerationRecord, GenerationSink, GenerationTrace};
pub use histogram::Histogram;
pub use machine_memory::{MemoryFiles, MemoryPressure, MemoryReading, machine_memory};
pub use media::decoder::{DECODE_MEDIA_JOB, decode_media_job};
pub use media::{Image, MAX_IMAGE_BYTES};
pub use metric_sample::{Metric, MetricKind};
pub use model_check::ModelCheck;
pub use model_check::input::CHECK_MODEL_JOB;
pub use model_check::job::check_model_job;
pub use model_config::{DeviceTopKMode, ModelConfig, ModelInfo};
pub use model_file::ModelFile;
pub use model_pool::{
    ModelLease, ModelPool, ModelPoolSettings, ModelSize, ModelState, ModelStatus, OpenError,
    OpenModel,
};
pub use next_token::{Distribution, DistributionPart, MAX_CANDIDATES, NextTokenRequest};
pub use reader_wake_queue::WakeTask;
pub use reply::Reply;
pub use request_observer::{
    GenerationMetrics, GenerationPhase, REQUEST_SECONDS, RequestObserver, TokenUsage,
};
pub use sequence::Sequence;
pub use snapshot::{SnapshotError, SnapshotLimits, Snapshots};
pub use split_files::split_files;
pub use status::{
    DroppedPrefixes, EngineStatus, EntryLocation, EntryStatus, RequestCounts, RequestStatus,
    SchedulerCounters,
};

/// Index into a model's vocabulary.
pub type Token = u32;

/// Parts for tests and benchmarks, which the server does not use.
pub mod testing {
    pub use crate::backend::{Backend, DecodeError, LogitsCopied, SaveError, TokenInput};
    pub use crate::benchmark_context::BenchmarkContext;
    pub use crate::engine_waker::EngineWaker;
    pub use crate::external_sampler::SamplerMailbox;
    pub use crate::media::audio::decode_audio;
    pub use crate::media::picture::decode_picture;
    pub use crate::prefix_files::has_state as prefix_file_has_state;
    pub use crate::snapshot::Origin as SnapshotOrigin;
    pub use crate::swap_store::{FetchResult, SwapBudget, SwapStore};
    pub use crate::text_decoder::TextDecoder;
}
