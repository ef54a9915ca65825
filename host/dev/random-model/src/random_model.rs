//! Models for benchmarks: random weights at a real model's scale, quantized by llama.cpp. The metadata of a file record its
//! parameters, so that a benchmark reuses it.

use super::vocabulary::Vocabulary;
use super::{Architecture, Distribution, ModelBuilder, Qwen3, Value};
use corral_llama::gguf::{GgufError, metadata};
use corral_llama::quantize::{Quant, quantize};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f32::consts::TAU;
use std::path::{Path, PathBuf};

/// Prefix of the keys that record the parameters.
const KEY_PREFIX: &str = "corral.random.";
/// Increase it when the same parameters give another file.
const VERSION: u32 = 2;
/// Standard deviation of the weights in matrices, as in trained models; norms are 1.
const DEVIATION: f32 = 0.02;
/// llama.cpp's file type of F16 weights with F32 norms.
const FILE_TYPE_F16: u32 = 1;
/// Extension of the temporary file of F16 weights.
const WEIGHTS: &str = "weights";
/// Extension of the file that the quantizer writes, and of any file until it is complete.
const PART: &str = "part";

/// The parameters of a model with random weights.
#[derive(Clone, Debug)]
pub struct RandomModel {
    /// The name of the sizes; models of one name count as having the same sizes.
    pub name: &'static str,
    /// The sizes, with the types before quantization.
    pub sizes: Qwen3,
    /// Size of the vocabulary, at least 512.
    pub tokens: u32,
    /// The type to quantize to.
    pub quant: Quant,
    /// Seed of weights and vocabulary.
    pub seed: u64,
}

impl RandomModel {
    /// Whether the file records these parameters. False if it can't be read.
    pub fn matches(&self, path: &Path) -> bool {
        metadata(path, KEY_PREFIX).is_ok_and(|found| found == self.metadata())
    }

    /// The metadata that record the parameters.
    fn metadata(&self) -> Vec<(String, Value)> {
        let values: [(&str, Value); 4] = [
            ("shape", self.name.into()),
            ("quant", self.quant.name().into()),
            ("seed", self.seed.into()),
            ("version", VERSION.into()),
        ];
        values
            .map(|(key, value)| (format!("{KEY_PREFIX}{key}"), value))
            .into()
    }

    /// Writes the file, or replaces it. Temporary files lie beside it, and are removed after an error. Blocks for as long
    /// as it takes.
    pub fn write(&self, path: &Path) -> Result<(), GgufError> {
        let tokenizer = Vocabulary::new(self.tokens, self.seed)?.metadata();
        let architecture = Architecture::Qwen3(self.sizes.clone());
        let builder = ModelBuilder::new(&architecture, tokenizer)?;
        let Some(mut builder) = builder else {
            return Err(GgufError::Invalid("the vocabulary has no tokens".into()));
        };
        builder.writer.set("general.file_type", FILE_TYPE_F16)?;
        for (key, value) in self.metadata() {
            builder.writer.set(&key, value)?;
        }
        let is_quantized = self.quant != Quant::F16;
        let weights = TemporaryFile(path.with_added_extension(WEIGHTS));
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let normal = Normal::new(&mut random);
        let distributions = builder.distributions;
        builder
            .writer
            .write(&weights.0, |index, _, weights| match distributions[index] {
                Distribution::Matrix => normal.fill(&mut random, weights),
                // A Qwen3 has only gains of norms besides matrices.
                _ => weights.fill(1.0),
            })?;
        let complete = if is_quantized {
            let part = TemporaryFile(path.with_added_extension(PART));
            quantize(&weights.0, &part.0, self.quant)?;
            part
        } else {
            weights
        };
        std::fs::rename(&complete.0, path).map_err(|cause| GgufError::Write {
            path: path.to_owned(),
            cause,
        })
    }
}

/// Removes a file when dropped, if it exists.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // It may have been renamed or never created.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Normally distributed numbers, drawn from 65,536 precomputed ones: a model needs hundreds of millions.
struct Normal(Vec<f32>);

impl Normal {
    /// Precomputes them with the Box-Muller transform.
    fn new(random: &mut ChaCha8Rng) -> Self {
        let mut numbers = Vec::with_capacity(1 << 16);
        while numbers.len() < 1 << 16 {
            // Above zero, for the logarithm.
            let uniform = 1.0 - random.random::<f32>();
            let length = DEVIATION * (-2.0 * uniform.ln()).sqrt();
            let (sine, cosine) = (TAU * random.random::<f32>()).sin_cos();
            numbers.extend([length * cosine, length * sine]);
        }
        Self(numbers)
    }

    fn fill(&self, random: &mut ChaCha8Rng, weights: &mut [f32]) {
        for four in weights.chunks_mut(4) {
            let bytes = random.random::<u64>().to_le_bytes();
            for (weight, two) in four.iter_mut().zip(bytes.chunks_exact(2)) {
                *weight = self.0[usize::from(u16::from_le_bytes([two[0], two[1]]))];
            }
        }
    }
}

#[cfg(test)]
mod tests;
