//! What a model's file says of its sizes, and what follows from them for memory.
//!
//! The cells are reckoned as if every layer had attention over all of them: more than it really is for
//! hybrid models and those with sliding windows.

use crate::config::STEP_TOKENS;
use crate::error::LoadError;
use corral_llama::gguf::{GgufError, Value, metadata_where, tensors};
use corral_llama::{KvType, LlamaError, check_magic};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// llama.cpp rounds the cells of a context up to a multiple.
const CELLS: u64 = 256;
/// Most layers that weights are counted of one by one. llama.cpp has no model of more.
const MOST_LAYERS: u64 = 512;

/// The head of a model's file.
#[derive(Debug)]
pub(crate) struct Shape {
    path: PathBuf,
    sizes: Metadata,
}

/// Bytes of a file's weights, by where llama.cpp offloads them with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    /// Of each layer.
    pub layers: Vec<u64>,
    /// Of the output.
    pub output: u64,
}

impl Shape {
    /// Reads the head of a file, or of the first of several. The error is what the load would say: the file
    /// can't be read, is no GGUF, or one on which llama.cpp would end the process.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        check_magic(path)?;
        let wanted = |key: &str| {
            key == ARCHITECTURE || key == VOCABULARY || SIZES.iter().any(|s| key.ends_with(s))
        };
        let found = metadata_where(path, wanted).map_err(|error| damaged(path, error))?;
        if let Some(token) = twice(&found) {
            return Err(LoadError::Llama(LlamaError::Damaged {
                path: path.to_owned(),
                cause: format!("two tokens of its vocabulary are {token:?}"),
            }));
        }
        Ok(Self {
            path: path.to_owned(),
            sizes: Metadata::new(found),
        })
    }

    /// Positions that the model was trained on, 1 at least.
    pub fn trained(&self) -> u32 {
        let trained = self.sizes.most(".context_length");
        u32::try_from(trained).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes of the weights, as they are in the files.
    pub fn weights(&self) -> u64 {
        let parts = parts(&self.path);
        let bytes = |part: &PathBuf| std::fs::metadata(part).map_or(0, |about| about.len());
        parts.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// [`LoadError::Config`] if the cells of this model can't be stored so.
    pub fn check_kv(&self, kv: KvType) -> Result<(), LoadError> {
        for (what, size) in [("keys", KEYS), ("values", VALUES)] {
            let length = self.length(size);
            if !length.is_multiple_of(kv.block()) {
                return Err(LoadError::Config(format!(
                    "the cells of {} can't be stored as {kv}: the {what} of its heads have {length} numbers, \
                     which is no multiple of {}; store them as f16",
                    self.path.display(),
                    kv.block()
                )));
            }
        }
        Ok(())
    }

    /// Bytes of so many cells: cells, times heads of all layers, times keys and values of a head.
    pub fn cells(&self, cells: u32, kv: KvType) -> u64 {
        let layers = self.sizes.most(".block_count");
        let heads = match self.sizes.sum(KV_HEADS, layers) {
            0 => self.sizes.most(HEADS).saturating_mul(layers),
            all => all,
        };
        self.of_head(cells, kv).saturating_mul(heads)
    }

    /// The part of [`Shape::cells`] that belongs to one layer.
    pub fn layer_cells(&self, layer: usize, cells: u32, kv: KvType) -> u64 {
        let layers = self.sizes.most(".block_count");
        let heads = match self.sizes.sum(KV_HEADS, layers) {
            0 => self.sizes.most(HEADS),
            _ => self.sizes.of_layer(KV_HEADS, layer),
        };
        self.of_head(cells, kv).saturating_mul(heads)
    }

    /// Bytes of the states that Mamba has in each layer, for so many sequences.
    pub fn layer_states(&self, sequences: u16) -> u64 {
        let state = self
            .sizes
            .most(".ssm.state_size")
            .saturating_add(self.sizes.most(".ssm.conv_kernel"));
        self.sizes
            .most(".ssm.inner_size")
            .saturating_mul(state)
            .saturating_mul(4 * u64::from(sequences))
    }

    /// The same of all layers.
    pub fn states(&self, sequences: u16) -> u64 {
        let layers = self.sizes.most(".block_count");
        self.layer_states(sequences).saturating_mul(layers)
    }

    /// Bytes of a row of logits for each token of a full step, in f32; twice where the likeliest tokens are
    /// selected on the device.
    pub fn logits(&self, selects: bool) -> u64 {
        let step = u64::from(STEP_TOKENS);
        let times = if selects { 2 } else { 1 };
        self.sizes.vocabulary.saturating_mul(4 * step * times)
    }

    /// Bytes of the rows of logits that a context keeps; where the likeliest tokens are selected on the device,
    /// of twice the ids, with logits, probabilities and candidates of those selected for each.
    pub fn kept_logits(&self, sequences: u16, selects: bool) -> u64 {
        let rows = match selects {
            true => 4 * 2 * u64::from(sequences),
            false => u64::from(sequences),
        };
        self.sizes.vocabulary.saturating_mul(4 * rows)
    }

    /// Bytes that a full step computes with, but for logits: the rows of a layer in f32, and the mask of
    /// attention in f16.
    pub fn step(&self, cells: u32) -> u64 {
        let step = u64::from(STEP_TOKENS);
        let attention = self.sizes.most(HEADS).saturating_mul(self.length(KEYS));
        let width = self.sizes.most(WIDTH);
        let row = self
            .sizes
            .most(".feed_forward_length")
            .saturating_mul(2)
            .saturating_add(attention.saturating_add(width).saturating_mul(4));
        let rows = step.saturating_mul(row.saturating_mul(4));
        let mask = step.saturating_mul(rounded(cells).saturating_mul(2));
        rows.saturating_add(mask)
    }

    /// Where the weights are. Where there is no matrix for the output, that of the tokens is it, and lies in
    /// both places.
    pub fn weights_by_layer(&self) -> Result<Weights, LoadError> {
        let layers = self.sizes.most(".block_count").min(MOST_LAYERS);
        let mut weights = Weights {
            layers: vec![0; usize::try_from(layers).unwrap_or(0)],
            output: 0,
        };
        let (mut tokens, mut has_output) = (0, false);
        for part in parts(&self.path) {
            for tensor in tensors(&part).map_err(|error| damaged(&part, error))? {
                let layer = layer_of(&tensor.name);
                let place = match layer.and_then(|layer| weights.layers.get_mut(layer)) {
                    Some(place) => place,
                    None if tensor.name.starts_with("token_") => {
                        if tensor.name == "token_embd.weight" {
                            tokens = tensor.bytes;
                        }
                        continue;
                    }
                    None => &mut weights.output,
                };
                *place = place.saturating_add(tensor.bytes);
                has_output |= tensor.name == "output.weight";
            }
        }
        if !has_output {
            weights.output = weights.output.saturating_add(tokens);
        }
        Ok(weights)
    }

    /// Bytes of the keys and values of one head in so many cells.
    fn of_head(&self, cells: u32, kv: KvType) -> u64 {
        let row = self.length(KEYS).saturating_add(self.length(VALUES));
        rounded(cells).saturating_mul(kv.bytes(row))
    }

    /// What a head has of keys or values: all heads together are as wide as the model unless the file says
    /// otherwise.
    fn length(&self, size: &str) -> u64 {
        let width = self.sizes.most(WIDTH);
        match self.sizes.most(size) {
            0 => width.checked_div(self.sizes.most(HEADS)).unwrap_or(width),
            length => length,
        }
    }
}

fn rounded(cells: u32) -> u64 {
    u64::from(cells).next_multiple_of(CELLS)
}

fn damaged(path: &Path, error: GgufError) -> LoadError {
    LoadError::Llama(LlamaError::Damaged {
        path: path.to_owned(),
        cause: match error {
            GgufError::Read { cause, .. } => cause,
            error => error.to_string(),
        },
    })
}

/// The number of the layer that a tensor belongs to.
fn layer_of(tensor: &str) -> Option<usize> {
    let (layer, _) = tensor.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// A token that the vocabulary has twice: llama.cpp ends the process on such a file. What is empty is
/// renamed there, and what is no UTF-8 can't be told apart here.
fn twice(found: &[(String, Value)]) -> Option<&str> {
    let tokens = found.iter().find_map(|(key, value)| match value {
        Value::Texts(tokens) if key == VOCABULARY => Some(tokens),
        _ => None,
    })?;
    let known = |token: &&String| !token.is_empty() && !token.contains(char::REPLACEMENT_CHARACTER);
    let mut seen = HashSet::with_capacity(tokens.len());
    let mut tokens = tokens.iter().filter(known);
    tokens
        .find(|token| !seen.insert(token.as_str()))
        .map(String::as_str)
}

const VOCABULARY: &str = "tokenizer.ggml.tokens";
const ARCHITECTURE: &str = "general.architecture";
const WIDTH: &str = ".embedding_length";
const HEADS: &str = ".attention.head_count";
const KV_HEADS: &str = ".attention.head_count_kv";
const KEYS: &str = ".attention.key_length";
const VALUES: &str = ".attention.value_length";
/// What the keys of sizes end in; the architecture's name stands before.
const SIZES: [&str; 11] = [
    ".block_count",
    WIDTH,
    ".feed_forward_length",
    ".context_length",
    HEADS,
    KV_HEADS,
    KEYS,
    VALUES,
    ".ssm.inner_size",
    ".ssm.state_size",
    ".ssm.conv_kernel",
];

/// Sizes by the ends of their keys: one number, or one for each layer.
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
            // A file may hold sizes of parts that are no part of the text model.
            if let Some(size) = key.strip_prefix(&architecture) {
                metadata.sizes.insert(size.to_owned(), numbers);
            }
        }
        metadata
    }

    /// The number, or the largest of all layers; 0 where there is none.
    fn most(&self, size: &str) -> u64 {
        let numbers = self.sizes.get(size).into_iter().flatten();
        numbers.copied().max().unwrap_or(0)
    }

    /// The number of one layer; 0 where there is none.
    fn of_layer(&self, size: &str, layer: usize) -> u64 {
        match self.sizes.get(size).map(Vec::as_slice) {
            Some([one]) => *one,
            Some(numbers) => numbers.get(layer).copied().unwrap_or(0),
            None => 0,
        }
    }

    /// The sum over so many layers.
    fn sum(&self, size: &str, layers: u64) -> u64 {
        match self.sizes.get(size).map(Vec::as_slice) {
            Some([one]) => one.saturating_mul(layers),
            Some(numbers) => numbers.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            None => 0,
        }
    }
}

/// The files of a model that is in several: `NAME-00001-of-00003.gguf` and those that follow, as
/// llama.cpp names them.
fn parts(path: &Path) -> Vec<PathBuf> {
    let whole = || vec![path.to_owned()];
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(".gguf")) else {
        return whole();
    };
    let Some((first, count)) = stem.rsplit_once("-of-") else {
        return whole();
    };
    let (Some(base), Ok(count @ 2..=99_999)) = (first.strip_suffix("-00001"), count.parse::<u32>())
    else {
        return whole();
    };
    (1..=count)
        .map(|part| path.with_file_name(format!("{base}-{part:05}-of-{count:05}.gguf")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_parts_is_all_of_them() {
        let part = |n: u32| PathBuf::from(format!("/m/big-{n:05}-of-00003.gguf"));
        assert_eq!(parts(&part(1)), [part(1), part(2), part(3)]);
        for whole in [
            "/m/x.gguf",
            "/m/x",
            "/m/x-of-3.gguf",
            "/m/x-00001-of-00001.gguf",
        ] {
            assert_eq!(parts(Path::new(whole)), [PathBuf::from(whole)]);
        }
    }

    #[test]
    fn a_token_that_is_there_twice_is_found() {
        let tokens = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            vec![(VOCABULARY.to_owned(), Value::Texts(texts))]
        };
        assert_eq!(
            twice(&tokens(&["a", "b", "", "", "\u{fffd}", "\u{fffd}"])),
            None
        );
        assert_eq!(twice(&tokens(&["a", "b", "a"])), Some("a"));
        assert_eq!(twice(&[]), None);
    }

    #[test]
    fn sizes_are_numbers_or_one_for_each_layer() {
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
        assert_eq!(found.most(".block_count"), 3);
        assert_eq!(found.most(".embedding_length"), 0);
        assert_eq!(found.sum(".attention.head_count_kv", 3), 3);
        assert_eq!(found.sum(".attention.head_count", 3), 12);
        let of = |size, layer| found.of_layer(size, layer);
        assert_eq!([0, 1, 2, 3].map(|layer| of(KV_HEADS, layer)), [2, 0, 1, 0]);
        assert_eq!((of(HEADS, 2), of(KEYS, 0)), (4, 0));
    }

    fn demo_model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
    }

    #[test]
    fn the_demo_model_takes_what_its_card_says() {
        let shape = Shape::read(&demo_model()).expect("a model");
        assert_eq!(shape.trained(), 4096);
        // 4 layers with 2 heads of 64 keys and 64 values.
        let numbers = 16_384 * 4 * 2 * (64 + 64);
        assert_eq!(shape.cells(16_384, KvType::F16), numbers * 2);
        assert_eq!(shape.cells(16_384, KvType::Q8_0), numbers / 32 * 34);
        assert_eq!(shape.cells(16_383, KvType::F16), numbers * 2);
        let of_layers = (0..4).map(|layer| shape.layer_cells(layer, 16_384, KvType::F16));
        assert_eq!(of_layers.sum::<u64>(), numbers * 2);
        assert_eq!(shape.layer_cells(99, 16_384, KvType::F16), numbers / 2);
        assert_eq!(shape.states(64), 0);
        assert!(shape.check_kv(KvType::Q8_0).is_ok());
    }

    #[test]
    fn weights_are_in_layers_or_before_or_after_them() {
        let shape = Shape::read(&demo_model()).expect("a model");
        let weights = shape.weights_by_layer().expect("it has some");
        assert_eq!(weights.layers.len(), 4);
        // The matrix of the tokens is that of the output too; the last norm has 128 numbers in f32.
        assert_eq!(weights.output, 264 * 128 * 2 + 128 * 4);
        let in_layers: u64 = weights.layers.iter().sum();
        assert!(weights.layers.iter().all(|layer| *layer == in_layers / 4));
        let all = in_layers + weights.output;
        let head = shape.weights() - all;
        assert!(all > head, "{all} bytes of weights and {head} of others");
    }

    #[test]
    fn heads_that_do_not_fill_blocks_are_refused_before_llama_does() {
        let of = |length: u32| Shape {
            path: PathBuf::from("x.gguf"),
            sizes: Metadata::new(vec![
                (ARCHITECTURE.to_owned(), Value::from("x")),
                (format!("x{WIDTH}"), Value::U32(length * 2)),
                (format!("x{HEADS}"), Value::U32(2)),
            ]),
        };
        assert!(of(96).check_kv(KvType::Q8_0).is_ok());
        assert!(of(80).check_kv(KvType::F16).is_ok());
        let error = of(80)
            .check_kv(KvType::Q8_0)
            .expect_err("80 is no multiple");
        let text = error.to_string();
        for said in ["x.gguf", "q8_0", "80 numbers", "multiple of 32", "f16"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }

    #[test]
    fn tensors_belong_to_layers_by_their_names() {
        assert_eq!(layer_of("blk.12.attn_q.weight"), Some(12));
        for other in ["output.weight", "blk.x.y", "blk.1", "block.1.x"] {
            assert_eq!(layer_of(other), None, "{other}");
        }
    }
}
