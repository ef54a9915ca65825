//! What to load, how large to make it, and what is known of it afterwards.

use crate::device_placement::PlacementOptions;
use crate::embedding::EmbeddingConfig;
use crate::store::snapshot::Snapshots;
use crate::{LoadError, Token};
use corral_scheduler::Overlap;
use corral_scheduler::PrefillPolicy;
use std::path::PathBuf;
use std::sync::Arc;

/// Sequence ids of a context. Each costs an output buffer and a share of scans over all ids; more
/// rows than this in a step gain nothing on a CPU.
pub(crate) const SEQ_IDS: u16 = 64;
/// Most tokens in a step (n_batch and n_ubatch).
pub(crate) const STEP_TOKENS: u32 = 512;
/// Positions of a sequence, unless the caller or the model says otherwise.
const DEFAULT_CONTEXT: u32 = 8192;
/// Cells, unless the caller says otherwise or one sequence needs more.
pub(crate) const DEFAULT_CELLS: u32 = 16_384;
/// Sequences that may wait, unless the caller says otherwise.
const DEFAULT_QUEUE: usize = 1024;
/// Bytes of memory for the states of idle and preempted sequences, unless the caller says otherwise.
const DEFAULT_SPILL: u64 = 1 << 30;
/// Bytes for the states of prefixes that nobody claims.
const DEFAULT_PREFIXES: u64 = 1 << 30;

/// Logits that are copied of a row whose others stay on the device, unless the caller says otherwise: twice
/// what a plugin that samples wants as a rule, and what the usual chains cut to.
const DEFAULT_TOP: u32 = 128;
/// Most of them. llama.cpp tries a selection among 131,072 logits first, whatever the model has, and ends the
/// process if more are to be selected.
const MOST_TOP: u32 = 1 << 16;

/// Whether the likeliest tokens are selected where the logits are computed, so that no more than those are
/// copied for sequences that need no more. What is generated is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSampling {
    /// Where the logits are computed on a GPU, by a model that can fork.
    Auto,
    /// Never: what it saves depends on how quickly a backend selects, which was not measured yet.
    #[default]
    Off,
    /// Wherever it can be done: so many, from 2 to 65,536. With other numbers, and by a model that has no more
    /// tokens, all logits are copied.
    On {
        /// How many.
        k: u32,
    },
}

impl DeviceSampling {
    /// Whether memory is to be expected for it, where the logits are on a device or not.
    pub(crate) fn is_expected(self, on_device: bool) -> bool {
        match self {
            Self::Auto => on_device,
            Self::Off => false,
            Self::On { .. } => true,
        }
    }

    /// How many are to be selected; none if all logits are to be copied. `on_gpu` is whether they are on a
    /// GPU and the model can fork.
    pub(crate) fn top_k(self, on_gpu: bool, vocabulary: u32) -> Option<u32> {
        let k = match self {
            Self::Auto if on_gpu => DEFAULT_TOP,
            Self::Auto | Self::Off => return None,
            Self::On { k } => k,
        };
        (2..vocabulary.min(MOST_TOP + 1)).contains(&k).then_some(k)
    }
}

/// What to load, and how large to make it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name under which it is served.
    pub name: String,
    /// A GGUF file.
    pub path: PathBuf,
    /// Positions a sequence may have; by default what the model was trained on, at most 8,192.
    pub context: Option<u32>,
    /// KV cells that all sequences share; by default 16,384, or one context if that is more.
    pub cells: Option<u32>,
    /// Compute threads; by default one for each core.
    pub threads: Option<u32>,
    /// Sequences that may wait before more are refused; one tenant may have a quarter of them.
    pub queue: usize,
    /// Sequences that may run at once, from 1 to 64.
    pub sequences: u16,
    /// How prompts are read while others generate.
    pub prefill: PrefillPolicy,
    /// Whether what was computed is kept for those that begin alike or go on.
    pub prefix_cache: bool,
    /// Where the likeliest tokens are selected.
    pub device_sampling: DeviceSampling,
    /// Whether prompts are read while rows are sampled and callers that sample themselves are waited for. With
    /// [`Overlap::Auto`] where all layers are on devices: a processor that samples can't compute at the same time.
    pub overlap: Overlap,
    /// Bytes of memory for the states of sequences that had to leave the cells; by default 1 GiB. With
    /// 0 they are computed again.
    pub spill_ram: u64,
    /// Bytes of memory for the states of prefixes that nobody runs and that cost more in the cells than it takes to
    /// move them; by default 1 GiB. With 0 they are dropped.
    pub prefix_ram: u64,
    /// A folder and how many bytes of files in it, for states that find no room in memory.
    pub spill_disk: Option<(PathBuf, u64)>,
    /// Where named snapshots of sequences are kept.
    pub snapshots: Option<Arc<Snapshots>>,
    /// LoRA adapters, GGUF files, by the names under which they are asked for; at most 16.
    pub adapters: Vec<(String, PathBuf)>,
    /// How embeddings are computed.
    pub embedding: EmbeddingConfig,
    /// Devices, GPU layers and the type of the cells; by default as many layers on GPUs as fit, and f16.
    pub placement: PlacementOptions,
}

impl Config {
    /// A model with sizes of the engine's choice.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            context: None,
            cells: None,
            threads: None,
            queue: DEFAULT_QUEUE,
            sequences: SEQ_IDS,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            device_sampling: DeviceSampling::default(),
            overlap: Overlap::default(),
            spill_ram: DEFAULT_SPILL,
            prefix_ram: DEFAULT_PREFIXES,
            spill_disk: None,
            snapshots: None,
            adapters: Vec::new(),
            embedding: EmbeddingConfig::default(),
            placement: PlacementOptions::default(),
        }
    }

    /// Positions of a sequence of a model that was trained on so many.
    pub(crate) fn context_for(&self, trained: u32) -> Result<u32, LoadError> {
        match self.context {
            None => Ok(trained.min(DEFAULT_CONTEXT)),
            Some(wanted) if (2..=trained).contains(&wanted) => Ok(wanted),
            Some(wanted) => Err(LoadError::Config(format!(
                "a context of {wanted} was asked for; {} was trained on {trained} positions: \
                 give a number from 2 to {trained}",
                self.path.display()
            ))),
        }
    }

    /// KV cells of a model that was trained on so many positions.
    pub(crate) fn cells_for(&self, trained: u32) -> u32 {
        let context = self.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
        self.cells.unwrap_or(DEFAULT_CELLS.max(context))
    }
}

/// What may be known of a loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The name under which it is served.
    pub name: String,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Positions a sequence may have, prompt and generated tokens together.
    pub context: u32,
    /// Length of an embedding vector.
    pub embedding_length: u32,
    /// The token that begins a text, where the model wants one.
    pub begin: Option<Token>,
    /// The token that ends a text or a turn as a rule: one of those that end a generation.
    pub end: Option<Token>,
    /// Tokens that end a generation, in rising order.
    pub end_of_generation: Vec<Token>,
    /// The Jinja chat template of the file.
    pub chat_template: Option<String>,
    /// Whether sequences can be truncated, and a part of one be shared with others: not where the
    /// model's memory is recurrent or a sliding window.
    pub can_truncate: bool,
    /// Names of the adapters that were loaded with it, in the order in which they were given.
    pub adapters: Vec<String>,
    /// Whether it generates text: not where it is an encoder, which is good for embeddings alone.
    pub can_generate: bool,
    /// Its layers, the output counted as one.
    pub layers: u32,
    /// Number of its last layers on devices.
    pub gpu_layers: u32,
    /// The names of these devices; none for the CPU alone.
    pub devices: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_are_selected_on_a_gpu_or_where_it_is_said() {
        let on = |k| DeviceSampling::On { k };
        assert_eq!(DeviceSampling::Auto.top_k(true, 1000), Some(DEFAULT_TOP));
        assert_eq!(DeviceSampling::Auto.top_k(false, 1000), None);
        assert_eq!(DeviceSampling::Auto.top_k(true, DEFAULT_TOP), None);
        assert_eq!(DeviceSampling::Off.top_k(true, 1000), None);
        assert_eq!(on(64).top_k(false, 1000), Some(64));
        assert_eq!(on(MOST_TOP).top_k(false, 300_000), Some(MOST_TOP));
        for (k, vocabulary) in [(1, 1000), (64, 64), (64, 10), (MOST_TOP + 1, 300_000)] {
            assert_eq!(on(k).top_k(true, vocabulary), None, "{k} of {vocabulary}");
        }
    }
}
