//! Estimates a model's memory from the header of its file.
//!
//! GGUF types enter here in three ways:
//!
//! - Weights count as many bytes as in the file, whatever their type ([`MemoryEstimate::weights_by_layer`]).
//! - Cells count by their type: [`KvType::bytes`] in `corral-llama` has the size of each.
//! - Sizes of the network come from metadata: [`SIZE_KEYS`] lists the keys, and [`Metadata::new`] the value types.
//!
//! The estimate counts all cells for every layer, which is too much for hybrid models and sliding windows.

mod header_cache;

use crate::error::LoadError;
use crate::split_files::split_files;
use corral_llama::gguf::{GgufError, Value, metadata_where, tensors};
use corral_llama::{KvType, LlamaError, check_magic};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most tokens in a step (n_batch and n_ubatch).
pub(crate) const STEP_TOKENS: u32 = 512;
/// llama.cpp rounds the cells of a context up to a multiple.
const CELL_MULTIPLE: u64 = 256;
/// At most this many bytes of a saved state are a token's position and ids.
const STATE_TOKEN_BYTES: u64 = 32;
/// At most this many bytes of a saved state are the sizes of layers and the like.
const STATE_HEAD_BYTES: u64 = 1 << 16;
/// Most layers whose weights are counted one by one. No model of llama.cpp has more.
const MAX_LAYERS: u64 = 512;

const VOCABULARY: &str = "tokenizer.ggml.tokens";
const ARCHITECTURE: &str = "general.architecture";
const LAYERS: &str = ".block_count";
const CONTEXT: &str = ".context_length";
const WIDTH: &str = ".embedding_length";
const FEED_FORWARD: &str = ".feed_forward_length";
const HEADS: &str = ".attention.head_count";
const KV_HEADS: &str = ".attention.head_count_kv";
const KEY_LENGTH: &str = ".attention.key_length";
const VALUE_LENGTH: &str = ".attention.value_length";
const STATE_WIDTH: &str = ".ssm.inner_size";
const STATE_LENGTH: &str = ".ssm.state_size";
const CONVOLUTION: &str = ".ssm.conv_kernel";
/// Suffixes of the keys of sizes; the architecture precedes them.
const SIZE_KEYS: [&str; 11] = [
    LAYERS,
    CONTEXT,
    WIDTH,
    FEED_FORWARD,
    HEADS,
    KV_HEADS,
    KEY_LENGTH,
    VALUE_LENGTH,
    STATE_WIDTH,
    STATE_LENGTH,
    CONVOLUTION,
];

/// Estimates for one model file.
#[derive(Debug)]
pub(crate) struct MemoryEstimate {
    path: PathBuf,
    metadata: Arc<Metadata>,
}

/// Bytes of a file's weights, by the layer that they move to a device with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WeightBytes {
    /// Of each layer.
    pub layers: Vec<u64>,
    /// Of the output.
    pub output: u64,
}

impl MemoryEstimate {
    /// Reads the header of a file, or of the first of several. Fails as the load would: if the file can't be read, is
    /// not GGUF, or if llama.cpp would end the process on it.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        Self::read_with(path, true)
    }

    /// [`Self::read`] that skips the vocabulary, in a process that llama.cpp may end. Later reads of the process give the
    /// same.
    pub fn read_without_vocabulary(path: &Path) -> Result<Self, LoadError> {
        Self::read_with(path, false)
    }

    fn read_with(path: &Path, vocabulary: bool) -> Result<Self, LoadError> {
        check_magic(path)?;
        Ok(Self {
            path: path.to_owned(),
            metadata: header_cache::metadata(path, || Self::read_metadata(path, vocabulary))?,
        })
    }

    fn read_metadata(path: &Path, vocabulary: bool) -> Result<Metadata, LoadError> {
        let wanted = |key: &str| {
            key == ARCHITECTURE
                || (vocabulary && key == VOCABULARY)
                || SIZE_KEYS.iter().any(|suffix| key.ends_with(suffix))
        };
        let found = metadata_where(path, wanted).map_err(|error| header_error(path, error))?;
        if let Some(token) = repeated_token(&found) {
            return Err(LoadError::Llama(LlamaError::Damaged {
                path: path.to_owned(),
                cause: format!("its vocabulary contains the token {token:?} twice"),
            }));
        }
        Ok(Metadata::new(found))
    }

    /// Positions that the model was trained on, at least 1.
    pub fn trained_context(&self) -> u32 {
        let trained = self.metadata.largest(CONTEXT);
        u32::try_from(trained).unwrap_or(u32::MAX).max(1)
    }

    /// Number of layers.
    pub fn layers(&self) -> u64 {
        self.metadata.largest(LAYERS)
    }

    /// Bytes of the weights, as the size of the files.
    pub fn weight_bytes(&self) -> u64 {
        let bytes = |part: &PathBuf| std::fs::metadata(part).map_or(0, |metadata| metadata.len());
        let parts = split_files(&self.path);
        parts.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Checks that the cells of this model can have the type.
    pub fn check_kv_type(&self, kv: KvType) -> Result<(), LoadError> {
        for (name, size) in [("keys", KEY_LENGTH), ("values", VALUE_LENGTH)] {
            let length = self.head_length(size);
            if !length.is_multiple_of(kv.block()) {
                return Err(LoadError::Config(format!(
                    "the cells of {} can't be stored as {kv}: the {name} of a head have {length} numbers, \
                     which is not a multiple of {}; store them as f16",
                    self.path.display(),
                    kv.block()
                )));
            }
        }
        Ok(())
    }

    /// Bytes of the cells: cells, times heads of all layers, times keys and values of a head.
    pub fn cell_bytes(&self, cells: u32, kv: KvType) -> u64 {
        let layers = self.metadata.largest(LAYERS);
        let heads = match self.metadata.sum(KV_HEADS, layers) {
            0 => self.metadata.largest(HEADS).saturating_mul(layers),
            heads => heads,
        };
        self.head_cell_bytes(cells, kv).saturating_mul(heads)
    }

    /// The part of [`MemoryEstimate::cell_bytes`] in one layer.
    pub fn layer_cell_bytes(&self, layer: usize, cells: u32, kv: KvType) -> u64 {
        let layers = self.metadata.largest(LAYERS);
        let heads = match self.metadata.sum(KV_HEADS, layers) {
            0 => self.metadata.largest(HEADS),
            _ => self.metadata.of_layer(KV_HEADS, layer),
        };
        self.head_cell_bytes(cells, kv).saturating_mul(heads)
    }

    /// Bytes of the recurrent states of a Mamba layer.
    pub fn layer_state_bytes(&self, sequences: u16) -> u64 {
        let length = self.metadata.largest(STATE_LENGTH);
        let state = length.saturating_add(self.metadata.largest(CONVOLUTION));
        let width = self.metadata.largest(STATE_WIDTH);
        width
            .saturating_mul(state)
            .saturating_mul(4 * u64::from(sequences))
    }

    /// Bytes of the recurrent states of all layers.
    pub fn state_bytes(&self, sequences: u16) -> u64 {
        let layers = self.metadata.largest(LAYERS);
        self.layer_state_bytes(sequences).saturating_mul(layers)
    }

    /// Tokens of the longest sequence whose saved state has at most `bytes`.
    pub fn tokens_of_state(&self, bytes: u64, kv: KvType) -> u32 {
        let token = self.cell_bytes(1, kv) / CELL_MULTIPLE + STATE_TOKEN_BYTES;
        let fixed = self.state_bytes(1).saturating_add(STATE_HEAD_BYTES);
        u32::try_from(bytes.saturating_sub(fixed) / token).unwrap_or(u32::MAX)
    }

    /// Bytes of the logits of a full step, in f32; device top-k doubles them.
    pub fn logit_bytes(&self, device_top_k: bool) -> u64 {
        let copies = if device_top_k { 2 } else { 1 };
        let rows = u64::from(STEP_TOKENS) * copies;
        self.metadata.vocabulary.saturating_mul(4 * rows)
    }

    /// Bytes of the output rows of a context. Device top-k has twice the sequence ids, and logits, probabilities,
    /// candidates and tokens for each.
    pub fn output_bytes(&self, sequences: u16, device_top_k: bool) -> u64 {
        let copies = if device_top_k { 4 * 2 } else { 1 };
        let rows = u64::from(sequences) * copies;
        self.metadata.vocabulary.saturating_mul(4 * rows)
    }

    /// Bytes of the computation of a full step without logits: the rows of a layer in f32, and the attention mask in
    /// f16.
    pub fn step_bytes(&self, cells: u32) -> u64 {
        let step = u64::from(STEP_TOKENS);
        let heads = self.metadata.largest(HEADS);
        let attention = heads.saturating_mul(self.head_length(KEY_LENGTH));
        let width = self.metadata.largest(WIDTH);
        let feed_forward = self.metadata.largest(FEED_FORWARD).saturating_mul(2);
        let row = feed_forward.saturating_add(attention.saturating_add(width).saturating_mul(4));
        let rows = step.saturating_mul(row.saturating_mul(4));
        let mask = step.saturating_mul(rounded(cells).saturating_mul(2));
        rows.saturating_add(mask)
    }

    /// Bytes of the weights by layer. Without an output matrix the token embeddings serve as one, and take memory on the
    /// CPU and on the output's device.
    pub fn weights_by_layer(&self) -> Result<WeightBytes, LoadError> {
        let layers = self.metadata.largest(LAYERS).min(MAX_LAYERS);
        let mut weights = WeightBytes {
            layers: vec![0; usize::try_from(layers).unwrap_or(0)],
            output: 0,
        };
        let (mut embeddings, mut has_output) = (0, false);
        for part in split_files(&self.path) {
            for tensor in tensors(&part).map_err(|error| header_error(&part, error))? {
                let layer = layer_of(&tensor.name);
                let sum = match layer.and_then(|layer| weights.layers.get_mut(layer)) {
                    Some(sum) => sum,
                    None if tensor.name.starts_with("token_") => {
                        if tensor.name == "token_embd.weight" {
                            embeddings = tensor.bytes;
                        }
                        continue;
                    }
                    None => &mut weights.output,
                };
                *sum = sum.saturating_add(tensor.bytes);
                has_output |= tensor.name == "output.weight";
            }
        }
        if !has_output {
            weights.output = weights.output.saturating_add(embeddings);
        }
        Ok(weights)
    }

    /// Bytes of the keys and values of one head in these cells.
    fn head_cell_bytes(&self, cells: u32, kv: KvType) -> u64 {
        let keys = self.head_length(KEY_LENGTH);
        let row = keys.saturating_add(self.head_length(VALUE_LENGTH));
        rounded(cells).saturating_mul(kv.bytes(row))
    }

    /// Length of a head's keys or values. By default all heads together are as wide as the model.
    fn head_length(&self, size: &str) -> u64 {
        let width = self.metadata.largest(WIDTH);
        match self.metadata.largest(size) {
            0 => {
                let heads = self.metadata.largest(HEADS);
                width.checked_div(heads).unwrap_or(width)
            }
            length => length,
        }
    }
}

fn rounded(cells: u32) -> u64 {
    u64::from(cells).next_multiple_of(CELL_MULTIPLE)
}

/// The error of a model file whose header can't be read.
pub(crate) fn header_error(path: &Path, error: GgufError) -> LoadError {
    let cause = match error {
        GgufError::HeaderTooLarge { .. } => return LlamaError::HeaderTooLarge(error).into(),
        GgufError::Read { cause, .. } => cause,
        error => error.to_string(),
    };
    LoadError::Llama(LlamaError::Damaged {
        path: path.to_owned(),
        cause,
    })
}

/// The layer of a tensor.
fn layer_of(tensor: &str) -> Option<usize> {
    let (layer, _) = tensor.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// A token that the vocabulary contains twice, on which llama.cpp ends the process. llama.cpp renames empty tokens, and
/// tokens that are not UTF-8 look alike here.
fn repeated_token(found: &[(String, Value)]) -> Option<&str> {
    let tokens = found.iter().find_map(|(key, value)| match value {
        Value::Texts(tokens) if key == VOCABULARY => Some(tokens),
        _ => None,
    })?;
    let is_comparable =
        |token: &&String| !token.is_empty() && !token.contains(char::REPLACEMENT_CHARACTER);
    let mut seen = HashSet::with_capacity(tokens.len());
    let mut tokens = tokens.iter().filter(is_comparable);
    tokens
        .find(|token| !seen.insert(token.as_str()))
        .map(String::as_str)
}

/// Sizes by the suffixes of their keys: one number, or one for each layer.
#[derive(Debug)]
struct Metadata {
    sizes: HashMap<String, Vec<u64>>,
    vocabulary: u64,
}

impl Metadata {
    fn new(found: Vec<(String, Value)>) -> Self {
        let mut metadata = Self {
            sizes: HashMap::new(),
            vocabulary: 0,
        };
        let mut architecture = String::new();
        for (key, value) in found {
            let numbers = match value {
                Value::Text(name) if key == ARCHITECTURE => {
                    architecture = name;
                    continue;
                }
                Value::Texts(tokens) if key == VOCABULARY => {
                    metadata.vocabulary = tokens.len() as u64;
                    continue;
                }
                Value::U32(number) => vec![u64::from(number)],
                Value::U64(number) => vec![number],
                Value::I32(number) => vec![u64::try_from(number).unwrap_or(0)],
                Value::U32s(numbers) => numbers.into_iter().map(u64::from).collect(),
                Value::I32s(numbers) => {
                    let numbers = numbers.into_iter();
                    numbers.map(|n| u64::try_from(n).unwrap_or(0)).collect()
                }
                _ => continue,
            };
            // A file may also hold sizes of parts outside the text model.
            if let Some(size) = key.strip_prefix(&architecture) {
                metadata.sizes.insert(size.to_owned(), numbers);
            }
        }
        metadata
    }

    /// The number, or the largest of all layers; 0 if missing.
    fn largest(&self, size: &str) -> u64 {
        let numbers = self.sizes.get(size).into_iter().flatten();
        numbers.copied().max().unwrap_or(0)
    }

    /// The number of one layer; 0 if missing.
    fn of_layer(&self, size: &str, layer: usize) -> u64 {
        match self.sizes.get(size).map(Vec::as_slice) {
            Some([one]) => *one,
            Some(numbers) => numbers.get(layer).copied().unwrap_or(0),
            None => 0,
        }
    }

    /// The sum over the layers.
    fn sum(&self, size: &str, layers: u64) -> u64 {
        match self.sizes.get(size).map(Vec::as_slice) {
            Some([one]) => one.saturating_mul(layers),
            Some(numbers) => numbers.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_llama::{
        ContextSettings, DevicePlacement, LlamaContext, LoadProgress, Model, TokenInput,
    };
    use std::sync::Arc;

    #[test]
    fn repeated_token_is_found() {
        let tokens = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            vec![(VOCABULARY.to_owned(), Value::Texts(texts))]
        };
        assert_eq!(
            repeated_token(&tokens(&["a", "b", "", "", "\u{fffd}", "\u{fffd}"])),
            None
        );
        assert_eq!(repeated_token(&tokens(&["a", "b", "a"])), Some("a"));
        assert_eq!(repeated_token(&[]), None);
    }

    #[test]
    fn sizes_are_numbers_or_lists_by_layer() {
        let found = Metadata::new(vec![
            ("general.architecture".to_owned(), Value::from("x")),
            ("x.block_count".to_owned(), Value::U32(3)),
            ("x.attention.head_count".to_owned(), Value::U32(4)),
            (
                "x.attention.head_count_kv".to_owned(),
                Value::I32s(vec![2, 0, 1]),
            ),
            ("y.block_count".to_owned(), Value::U32(99)),
        ]);
        assert_eq!(found.largest(".block_count"), 3);
        assert_eq!(found.largest(".embedding_length"), 0);
        assert_eq!(found.sum(".attention.head_count_kv", 3), 3);
        assert_eq!(found.sum(".attention.head_count", 3), 12);
        let of = |size, layer| found.of_layer(size, layer);
        assert_eq!([0, 1, 2, 3].map(|layer| of(KV_HEADS, layer)), [2, 0, 1, 0]);
        assert_eq!((of(HEADS, 2), of(KEY_LENGTH, 0)), (4, 0));
    }

    fn demo_model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
    }

    #[test]
    fn estimated_tokens_of_state_fit() {
        let placement = DevicePlacement::default();
        let model = Model::load(&demo_model(), placement, &LoadProgress::default());
        let settings = ContextSettings {
            cells: 1024,
            step_tokens: STEP_TOKENS,
            seq_ids: 1,
            threads: 1,
            kv_type: KvType::F16,
            device_top_k: None,
        };
        let model = Arc::new(model.expect("a model"));
        let mut context = LlamaContext::new(model, settings).expect("a context");
        for start in [0, STEP_TOKENS] {
            let step = (start..start + STEP_TOKENS).map(|position| TokenInput {
                token: 7,
                position,
                seq: 0,
                output: false,
            });
            context.decode(step).expect("computed");
        }
        let bytes = context.save(0, usize::MAX).expect("a state").len() as u64;
        let estimate = MemoryEstimate::read(&demo_model()).expect("a model");
        let tokens = estimate.tokens_of_state(bytes, KvType::F16);
        assert!((900..=1024).contains(&tokens), "{tokens} in {bytes} bytes");
    }

    #[test]
    fn cell_bytes_match_the_demo_model() {
        let estimate = MemoryEstimate::read(&demo_model()).expect("a model");
        assert_eq!(estimate.trained_context(), 4096);
        // 4 layers with 2 heads of 64 keys and 64 values.
        let numbers = 16_384 * 4 * 2 * (64 + 64);
        assert_eq!(estimate.cell_bytes(16_384, KvType::F16), numbers * 2);
        assert_eq!(estimate.cell_bytes(16_384, KvType::Q8_0), numbers / 32 * 34);
        assert_eq!(estimate.cell_bytes(16_383, KvType::F16), numbers * 2);
        let by_layer = (0..4).map(|layer| estimate.layer_cell_bytes(layer, 16_384, KvType::F16));
        assert_eq!(by_layer.sum::<u64>(), numbers * 2);
        assert_eq!(
            estimate.layer_cell_bytes(99, 16_384, KvType::F16),
            numbers / 2
        );
        assert_eq!(estimate.state_bytes(64), 0);
        assert!(estimate.check_kv_type(KvType::Q8_0).is_ok());
    }

    #[test]
    fn weights_are_split_by_layer() {
        let estimate = MemoryEstimate::read(&demo_model()).expect("a model");
        let weights = estimate.weights_by_layer().expect("the file is readable");
        assert_eq!(weights.layers.len(), 4);
        // The token embeddings are the output matrix too; the last norm has 128 numbers in f32.
        assert_eq!(weights.output, 264 * 128 * 2 + 128 * 4);
        let in_layers: u64 = weights.layers.iter().sum();
        assert!(weights.layers.iter().all(|layer| *layer == in_layers / 4));
        let all = in_layers + weights.output;
        let header = estimate.weight_bytes() - all;
        assert!(
            all > header,
            "{all} bytes of weights and {header} of header"
        );
    }

    #[test]
    fn heads_must_fill_blocks_of_the_kv_type() {
        let model = |length: u32| MemoryEstimate {
            path: PathBuf::from("x.gguf"),
            metadata: Arc::new(Metadata::new(vec![
                (ARCHITECTURE.to_owned(), Value::from("x")),
                (format!("x{WIDTH}"), Value::U32(length * 2)),
                (format!("x{HEADS}"), Value::U32(2)),
            ])),
        };
        assert!(model(96).check_kv_type(KvType::Q8_0).is_ok());
        assert!(model(80).check_kv_type(KvType::F16).is_ok());
        let error = model(80)
            .check_kv_type(KvType::Q8_0)
            .expect_err("80 is not a multiple");
        let text = error.to_string();
        for part in ["x.gguf", "q8_0", "80 numbers", "multiple of 32", "f16"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn tensor_names_identify_layers() {
        assert_eq!(layer_of("blk.12.attn_q.weight"), Some(12));
        for other in ["output.weight", "blk.x.y", "blk.1", "block.1.x"] {
            assert_eq!(layer_of(other), None, "{other}");
        }
    }
}
