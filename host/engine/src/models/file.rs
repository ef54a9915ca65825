//! What can be known of a model's file before it is loaded: that it is one, and what it will take.

use crate::config::{Config, DeviceSampling, STEP_TOKENS};
use crate::error::LoadError;
use crate::llama::check_magic;
use crate::llama::gguf::{GgufError, Value, metadata_where};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Tells whether a file was replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Print {
    /// Of the file as it is now; none if there is none that can be asked.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

/// Bytes that the model of this file is expected to take: the weights as they are in the file, the
/// cells in f16 as if every layer had attention over all of them, the states of Mamba, and what a full
/// step computes with: logits, the rows of a layer, the mask of attention. More than it really takes for
/// hybrid models and those with sliding windows.
///
/// The error is what the load would say: the file can't be read or is no GGUF.
pub fn expected_bytes(config: &Config) -> Result<u64, LoadError> {
    check_magic(&config.path)?;
    let wanted = |key: &str| {
        key == "general.architecture" || key == VOCABULARY || SIZES.iter().any(|s| key.ends_with(s))
    };
    let damaged = |error| LoadError::Damaged {
        path: config.path.clone(),
        cause: match error {
            GgufError::Read { cause, .. } => cause,
            error => error.to_string(),
        },
    };
    let found = metadata_where(&config.path, wanted).map_err(damaged)?;
    if let Some(token) = twice(&found) {
        return Err(LoadError::Damaged {
            path: config.path.clone(),
            cause: format!("two tokens of its vocabulary are {token:?}"),
        });
    }
    let found = Metadata::new(found);
    let weights: u64 = parts(&config.path)
        .iter()
        .filter_map(|part| Print::of(part))
        .map(|print| print.bytes)
        .sum();
    let layers = found.most(".block_count");
    let width = found.most(".embedding_length");
    let heads = found.most(".attention.head_count");
    let head = width.checked_div(heads).unwrap_or(width);
    let length = |size: &str| match found.most(size) {
        0 => head,
        length => length,
    };
    let row = length(".attention.key_length").saturating_add(length(".attention.value_length"));
    let kv_heads = match found.sum(".attention.head_count_kv", layers) {
        0 => heads.saturating_mul(layers),
        all => all,
    };
    let trained = u32::try_from(found.most(".context_length")).unwrap_or(u32::MAX);
    let cells = u64::from(config.cells_for(trained.max(1)));
    let cache = cells
        .saturating_mul(kv_heads)
        .saturating_mul(row)
        .saturating_mul(2);
    let state = found
        .most(".ssm.state_size")
        .saturating_add(found.most(".ssm.conv_kernel"));
    let states = found
        .most(".ssm.inner_size")
        .saturating_mul(state)
        .saturating_mul(layers)
        .saturating_mul(4 * u64::from(config.sequences));
    let vocabulary = found.vocabulary;
    let step = u64::from(STEP_TOKENS);
    let ids = u64::from(config.sequences);
    let rows_of_logits = match config.device_sampling {
        // Twice the ids, with probabilities and candidates for each, and the logits once more in a step.
        DeviceSampling::On { .. } => 2 * step + 4 * 2 * ids,
        DeviceSampling::Auto | DeviceSampling::Off => step + ids,
    };
    let output = vocabulary.saturating_mul(4 * rows_of_logits);
    let attention = heads.saturating_mul(length(".attention.key_length"));
    let row_of_a_step = found
        .most(".feed_forward_length")
        .saturating_mul(2)
        .saturating_add(attention.saturating_add(width).saturating_mul(4));
    // In f32, and beside them the mask of attention in f16.
    let rows = step.saturating_mul(row_of_a_step.saturating_mul(4));
    let mask = step.saturating_mul(cells.saturating_mul(2));
    Ok(weights
        .saturating_add(cache)
        .saturating_add(states)
        .saturating_add(output)
        .saturating_add(rows)
        .saturating_add(mask))
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
/// What the keys of sizes end in; the architecture's name stands before.
const SIZES: [&str; 11] = [
    ".block_count",
    ".embedding_length",
    ".feed_forward_length",
    ".context_length",
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.key_length",
    ".attention.value_length",
    ".ssm.inner_size",
    ".ssm.state_size",
    ".ssm.conv_kernel",
];

/// Sizes by the ends of their keys: one number, or one for each layer.
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
                Value::Text(name) if key == "general.architecture" => {
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
    }
}
