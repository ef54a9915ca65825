//! Models that answer exactly as another model does, and compute as slowly as a larger one.
//!
//! The file has more layers, which add nothing to their input, and wider feed-forward layers, whose added parts are
//! multiplied by zero. The added weights that take part in a step are random; a step reads and multiplies them all. So a
//! bench can measure drafts that a small model predicts, and a large one verifies, without training a large one.

use super::{GgufError, TensorType, Value};
use corral_llama::gguf::{TensorInfo, Writer, metadata, tensors, weights};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};

/// Prefix of the keys that record the padding.
const KEY_PREFIX: &str = "corral.padded.";
/// Increase it when the same padding gives another file.
const VERSION: u32 = 1;
/// Largest random weight.
const BOUND: f32 = 0.05;

/// A model to pad, and the sizes of the result.
#[derive(Clone, Debug)]
pub struct PaddedModel {
    /// A model of the architecture "qwen3" with weights of F32 and F16.
    pub source: PathBuf,
    /// Number of layers, at least that of the source.
    pub layers: u32,
    /// Length of the feed-forward layers, at least that of the source.
    pub feed_forward: u32,
    /// Seed of the added weights.
    pub seed: u64,
}

/// A tensor of the result.
struct PaddedTensor {
    name: String,
    tensor_type: TensorType,
    row: u64,
    rows: u64,
    /// The tensor of the source that its first rows and columns come from.
    source: Option<TensorInfo>,
    /// The other weights.
    added: Added,
}

#[derive(Clone, Copy)]
enum Added {
    Zero,
    One,
    Random,
}

impl PaddedModel {
    /// Whether the file records this padding of a source of the same size. False if either can't be read.
    pub fn matches(&self, path: &Path) -> bool {
        metadata(path, KEY_PREFIX).is_ok_and(|found| found == self.metadata())
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let bytes = self.source.metadata().map_or(0, |file| file.len());
        let values: [(&str, Value); 5] = [
            ("layers", self.layers.into()),
            ("feed_forward", self.feed_forward.into()),
            ("source_bytes", bytes.into()),
            ("seed", self.seed.into()),
            ("version", VERSION.into()),
        ];
        values
            .map(|(key, value)| (format!("{KEY_PREFIX}{key}"), value))
            .into()
    }

    /// Writes the file, or replaces it.
    pub fn write(&self, path: &Path) -> Result<(), GgufError> {
        let mut writer = Writer::new()?;
        for (key, value) in metadata(&self.source, "")? {
            match key.as_str() {
                "qwen3.block_count" => writer.set(&key, self.layers)?,
                "qwen3.feed_forward_length" => writer.set(&key, self.feed_forward)?,
                _ => writer.set(&key, value)?,
            }
        }
        for (key, value) in self.metadata() {
            writer.set(&key, value)?;
        }
        let tensors = self.tensors()?;
        let mut read = Vec::new();
        for tensor in &tensors {
            let dimensions = [tensor.row, tensor.rows];
            let used = if tensor.rows == 1 { 1 } else { 2 };
            writer.tensor(&tensor.name, tensor.tensor_type, &dimensions[..used])?;
            let source = tensor.source.as_ref();
            let source = source.map(|source| weights(&self.source, &source.name));
            read.push(source.transpose()?.unwrap_or_default());
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut filled = (0, 0);
        writer.write(path, |index, tensor, weights| {
            if filled.0 != index {
                filled = (index, 0);
            }
            let padded = &tensors[index];
            let source = read[index].as_slice();
            let source_row = match &padded.source {
                Some(source) => usize::try_from(source.dimensions[0]).unwrap_or(1),
                None => 1,
            };
            for row in weights.chunks_mut(tensor.row) {
                let start = filled.1 * source_row;
                let known = source.get(start..start + source_row).unwrap_or_default();
                row[..known.len()].copy_from_slice(known);
                for weight in &mut row[known.len()..] {
                    *weight = match padded.added {
                        Added::Zero => 0.0,
                        Added::One => 1.0,
                        Added::Random => BOUND * (2.0 * random.random::<f32>() - 1.0),
                    };
                }
                filled.1 += 1;
            }
        })
    }

    /// The tensors of the result: those of the source, some with more rows or columns, and those of added layers.
    fn tensors(&self) -> Result<Vec<PaddedTensor>, GgufError> {
        let source = tensors(&self.source)?;
        let layers = source
            .iter()
            .filter(|tensor| tensor.name.ends_with("ffn_down.weight"));
        let layers = u32::try_from(layers.count()).unwrap_or(u32::MAX);
        let gate = source
            .iter()
            .find(|tensor| tensor.name.ends_with("ffn_gate.weight"));
        let inner = gate.map_or(0, |gate| gate.dimensions[1]);
        if layers == 0 || layers > self.layers || inner > i64::from(self.feed_forward) {
            return Err(GgufError::Invalid(format!(
                "{} has {layers} layers and feed-forward layers of {inner}; pad it to at least as many",
                self.source.display()
            )));
        }
        let template = source
            .iter()
            .filter_map(|tensor| tensor.name.strip_prefix("blk.0."));
        let template: Vec<_> = template.map(str::to_owned).collect();
        let mut padded = Vec::new();
        for tensor in source {
            padded.push(self.tensor(tensor.name.clone(), tensor)?);
        }
        for layer in layers..self.layers {
            for part in &template {
                let like = format!("blk.0.{part}");
                let like = padded.iter().find(|tensor| tensor.name == like);
                let Some(like) = like else {
                    continue;
                };
                padded.push(PaddedTensor {
                    name: format!("blk.{layer}.{part}"),
                    tensor_type: like.tensor_type,
                    row: like.row,
                    rows: like.rows,
                    source: None,
                    added: match part.as_str() {
                        // What a layer adds to its input.
                        "attn_output.weight" | "ffn_down.weight" => Added::Zero,
                        part if part.contains("norm") => Added::One,
                        _ => Added::Random,
                    },
                });
            }
        }
        Ok(padded)
    }

    /// A tensor of the source in the result.
    fn tensor(&self, name: String, source: TensorInfo) -> Result<PaddedTensor, GgufError> {
        let tensor_type = match source.type_name.as_str() {
            "f32" => TensorType::F32,
            "f16" => TensorType::F16,
            other => {
                return Err(GgufError::Invalid(format!(
                    "the tensor {name} has the type {other}; only F32 and F16 can be padded"
                )));
            }
        };
        let size = |dimension: i64| u64::try_from(dimension).unwrap_or(1);
        let (mut row, mut rows) = (size(source.dimensions[0]), size(source.dimensions[1]));
        let mut added = Added::Random;
        if name.ends_with("ffn_gate.weight") || name.ends_with("ffn_up.weight") {
            rows = self.feed_forward.into();
        } else if name.ends_with("ffn_down.weight") {
            row = self.feed_forward.into();
            added = Added::Zero;
        }
        Ok(PaddedTensor {
            name,
            tensor_type,
            row,
            rows,
            source: Some(source),
            added,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_keeps_the_weights_of_the_source() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../models/tiny/draft.gguf");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("padded.gguf");
        let padded = PaddedModel {
            source: source.clone(),
            layers: 3,
            feed_forward: 256,
            seed: 1,
        };
        padded.write(&path).unwrap();
        assert!(padded.matches(&path));
        let wider = PaddedModel {
            layers: 4,
            ..padded.clone()
        };
        assert!(!wider.matches(&path));
        let read = |file: &Path, name: &str| weights(file, name).unwrap();
        for name in [
            "token_embd.weight",
            "blk.1.attn_q.weight",
            "output_norm.weight",
        ] {
            assert_eq!(read(&path, name), read(&source, name), "{name}");
        }
        let (gate, before) = ("blk.1.ffn_gate.weight", 192 * 64);
        assert_eq!(read(&path, gate)[..before], read(&source, gate));
        assert!(
            read(&path, gate)[before..]
                .iter()
                .any(|weight| *weight != 0.0)
        );
        let down = read(&path, "blk.0.ffn_down.weight");
        let source_down = read(&source, "blk.0.ffn_down.weight");
        for (row, source_row) in down.chunks(256).zip(source_down.chunks(192)) {
            assert_eq!(row[..192], *source_row);
            assert!(row[192..].iter().all(|weight| *weight == 0.0));
        }
        for name in ["blk.2.ffn_down.weight", "blk.2.attn_output.weight"] {
            assert!(read(&path, name).iter().all(|weight| *weight == 0.0));
        }
        let less = PaddedModel {
            layers: 1,
            ..padded
        };
        let error = less.write(&path).unwrap_err().to_string();
        assert!(error.contains("has 2 layers"), "{error}");
    }
}
