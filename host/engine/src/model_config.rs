//! Configuration of a model, and facts about a loaded one.

use crate::cache_change_feed::CacheFeed;
use crate::device_placement::{GpuLayers, PlacementOptions};
use crate::embedding::EmbeddingConfig;
use crate::memory_estimate::MemoryEstimate;
use crate::model_check::ModelCheck;
use crate::snapshot::Snapshots;
use crate::{LoadError, Token};
use corral_isolation::ChildProcesses;
use corral_llama::{FileAccess, KvType};
use corral_scheduler::Overlap;
use corral_scheduler::PrefillPolicy;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most running requests: llama.cpp's limit of sequence ids (`LLAMA_MAX_SEQ`).
pub(crate) const MAX_RUNNING: u16 = 256;
/// Default number of running requests. Each sequence id costs an output buffer and lengthens scans over all ids; more
/// rows in a step gain nothing on a CPU.
const DEFAULT_MAX_RUNNING: u16 = 64;
/// Default limit of the context length.
pub(crate) const DEFAULT_CONTEXT: u32 = 8192;
/// Default length of the queue.
const DEFAULT_MAX_WAITING: usize = 1024;
/// Default bytes of RAM for swapped-out sequences.
const DEFAULT_SWAP_RAM: u64 = 1 << 30;
/// Default bytes of RAM for offloaded prefixes.
const DEFAULT_PREFIX_OFFLOAD_RAM: u64 = 1 << 30;

/// Default k of device top-k: twice the usual number of candidates of a sampling plugin.
const DEFAULT_TOP_K: u32 = 128;
/// Largest k. llama.cpp probes the selection with 131,072 logits, whatever the model has, and aborts the process if
/// k is larger.
const MAX_TOP_K: u32 = 1 << 16;

/// Whether the device selects the k highest logits of a row, so that only those are copied for requests that need
/// no more. Does not change what is generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceTopKMode {
    /// On if a GPU computes the logits of a model that can fork.
    Auto,
    /// Off. The default, because the gain depends on the backend's selection and is not measured yet.
    #[default]
    Off,
    /// On for every backend that supports it. `k` outside of 2 to 65,536, or not below the size of the vocabulary,
    /// turns it off.
    On {
        /// Number of logits to select.
        k: u32,
    },
}

impl DeviceTopKMode {
    /// Whether the memory estimate includes it. `on_device` says whether a device computes the logits.
    pub(crate) fn is_expected(self, on_device: bool) -> bool {
        match self {
            Self::Auto => on_device,
            Self::Off => false,
            Self::On { .. } => true,
        }
    }

    /// The k to use, if any. `on_gpu` says whether a GPU computes the logits of a model that can fork.
    pub(crate) fn top_k(self, on_gpu: bool, vocabulary: u32) -> Option<u32> {
        let k = match self {
            Self::Auto if on_gpu => DEFAULT_TOP_K,
            Self::Auto | Self::Off => return None,
            Self::On { k } => k,
        };
        (2..vocabulary.min(MAX_TOP_K + 1)).contains(&k).then_some(k)
    }
}

/// The file of a model and the sizes of its engine.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Name that requests use.
    pub name: String,
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Path of the GGUF file of a smaller model of the same vocabulary, which drafts for this one.
    pub draft: Option<PathBuf>,
    /// How the weights come into memory.
    pub file_access: FileAccess,
    /// Checks the file before the first load.
    pub check: Option<Arc<ModelCheck>>,
    /// Positions per sequence; by default those of the training, at most 8,192.
    pub context: Option<u32>,
    /// KV cells, shared by all sequences; by default 16,384, or as many as a quarter of the memory that they lie in holds,
    /// but at least one context.
    pub cells: Option<u32>,
    /// Compute threads; by default one per core.
    pub threads: Option<u32>,
    /// Whether fewer threads compute while other threads keep the cores busy, if results stay the same.
    pub adaptive_threads: bool,
    /// Most waiting requests; one tenant may fill a quarter.
    pub max_waiting: usize,
    /// Most running requests, from 1 to 256; by default 64.
    pub max_running: u16,
    /// How prefill shares steps with decoding requests.
    pub prefill: PrefillPolicy,
    /// Whether ended requests leave their state for reuse.
    pub prefix_cache: bool,
    /// Where the highest logits are selected.
    pub device_top_k: DeviceTopKMode,
    /// Whether prefill overlaps sampling and waiting for next-token requests. [`Overlap::Auto`] turns it on if
    /// devices hold all layers, since a CPU that samples cannot compute at the same time.
    pub overlap: Overlap,
    /// Bytes of RAM for swapped-out sequences; by default 1 GiB. 0 recomputes them instead.
    pub swap_ram: u64,
    /// Bytes of RAM for offloaded prefixes; by default 1 GiB. 0 drops them instead.
    pub prefix_offload_ram: u64,
    /// Directory and bytes of disk for swapped-out sequences that exceed the RAM.
    pub swap_disk: Option<(PathBuf, u64)>,
    /// Directory and bytes of disk for prefixes, which are there again after a restart. A model has a subdirectory of its
    /// name, which one process at a time can use.
    pub prefix_disk: Option<(PathBuf, u64)>,
    /// Gets the changes of the prefix cache.
    pub cache_feed: Option<Arc<CacheFeed>>,
    /// Store of named snapshots.
    pub snapshots: Option<Arc<Snapshots>>,
    /// LoRA adapters: name and path of the GGUF file; at most 16.
    pub adapters: Vec<(String, PathBuf)>,
    /// Projector file (`mmproj`), with which the model accepts images or audio.
    pub projector: Option<PathBuf>,
    /// Whether the embeddings of a window of audio are repeated for others with as many positions, as a check does to be short.
    pub(crate) repeat_windows: bool,
    /// Starts the child processes that decode images and audio; without it this process decodes them.
    pub image_decoders: Option<ChildProcesses>,
    /// Configuration of embeddings.
    pub embedding: EmbeddingConfig,
    /// Devices of the layers and the type of the cells; by default as many layers as fit on GPUs, and f16.
    pub placement: PlacementOptions,
}

impl ModelConfig {
    /// A configuration with default sizes.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            draft: None,
            file_access: FileAccess::default(),
            check: None,
            context: None,
            cells: None,
            threads: None,
            adaptive_threads: true,
            max_waiting: DEFAULT_MAX_WAITING,
            max_running: DEFAULT_MAX_RUNNING,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            device_top_k: DeviceTopKMode::default(),
            overlap: Overlap::default(),
            swap_ram: DEFAULT_SWAP_RAM,
            prefix_offload_ram: DEFAULT_PREFIX_OFFLOAD_RAM,
            swap_disk: None,
            prefix_disk: None,
            cache_feed: None,
            snapshots: None,
            adapters: Vec::new(),
            projector: None,
            repeat_windows: false,
            image_decoders: None,
            embedding: EmbeddingConfig::default(),
            placement: PlacementOptions::default(),
        }
    }

    /// The configuration of the draft model in `path`, for a model with this context and these cells.
    pub(crate) fn draft_config(
        &self,
        path: &Path,
        context: u32,
        cells: u32,
    ) -> Result<Self, LoadError> {
        let trained = MemoryEstimate::read(path)?.trained_context();
        Ok(Self {
            file_access: self.file_access,
            check: self.check.clone(),
            // A file without a context length is no model, which its load reports.
            context: Some(context.min(trained)).filter(|context| *context >= 2),
            cells: Some(cells),
            threads: self.threads,
            max_running: self.max_running,
            placement: PlacementOptions {
                devices: self.placement.devices.clone(),
                gpu_layers: match self.placement.gpu_layers {
                    GpuLayers::Exactly(0) => GpuLayers::Exactly(0),
                    _ => GpuLayers::Auto,
                },
                kv_type: KvType::F16,
            },
            ..Self::new(format!("draft of {}", self.name), path)
        })
    }

    /// Positions per sequence of a model trained on `trained` positions.
    pub(crate) fn context_for(&self, trained: u32) -> Result<u32, LoadError> {
        match self.context {
            None => Ok(trained.min(DEFAULT_CONTEXT)),
            Some(context) if (2..=trained).contains(&context) => Ok(context),
            Some(context) => Err(LoadError::Config(format!(
                "a context of {context} positions was requested, but {} was trained on {trained}; \
                 give a number from 2 to {trained}",
                self.path.display()
            ))),
        }
    }
}

/// Facts about a loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Name that requests use.
    pub name: String,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Positions per sequence: prompt and generated tokens together.
    pub context: u32,
    /// Length of an embedding vector.
    pub embedding_length: u32,
    /// The beginning-of-sequence token, if the model expects one.
    pub begin: Option<Token>,
    /// The token that usually ends a text or a turn; one of `end_of_generation`.
    pub end: Option<Token>,
    /// All tokens that end a generation, rising.
    pub end_of_generation: Vec<Token>,
    /// The file's Jinja chat template.
    pub chat_template: Option<String>,
    /// The file's template for a query and a document.
    pub rerank_template: Option<String>,
    /// Whether sequences can be truncated and share a prefix. False for recurrent and sliding-window memories.
    pub can_truncate: bool,
    /// Names of the LoRA adapters, in the order of the configuration.
    pub adapters: Vec<String>,
    /// Whether sequences may hold images.
    pub accepts_images: bool,
    /// Whether sequences may hold audio.
    pub accepts_audio: bool,
    /// Whether the model generates text. False for an encoder, which only computes embeddings.
    pub can_generate: bool,
    /// Number of layers; the output counts as one.
    pub layers: u32,
    /// Number of layers on devices, counted from the last.
    pub gpu_layers: u32,
    /// Names of those devices; empty if the CPU computes everything.
    pub devices: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_top_k_needs_gpu_or_explicit_k() {
        let on = |k| DeviceTopKMode::On { k };
        assert_eq!(DeviceTopKMode::Auto.top_k(true, 1000), Some(DEFAULT_TOP_K));
        assert_eq!(DeviceTopKMode::Auto.top_k(false, 1000), None);
        assert_eq!(DeviceTopKMode::Auto.top_k(true, DEFAULT_TOP_K), None);
        assert_eq!(DeviceTopKMode::Off.top_k(true, 1000), None);
        assert_eq!(on(64).top_k(false, 1000), Some(64));
        assert_eq!(on(MAX_TOP_K).top_k(false, 300_000), Some(MAX_TOP_K));
        for (k, vocabulary) in [(1, 1000), (64, 64), (64, 10), (MAX_TOP_K + 1, 300_000)] {
            assert_eq!(on(k).top_k(true, vocabulary), None, "{k} of {vocabulary}");
        }
    }
}
