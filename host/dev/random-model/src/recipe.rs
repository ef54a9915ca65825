//! A model to measure with: weights of a real model's scale, drawn at random, then quantized by
//! llama.cpp. The file says how it was made, so that nobody makes it twice.

use super::vocabulary::Vocabulary;
use super::{Filling, Plan, Qwen3, Shape, Value};
use corral_llama::gguf::{GgufError, metadata};
use corral_llama::quantize::{Quant, quantize};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f32::consts::TAU;
use std::path::{Path, PathBuf};

/// What the keys begin with that say how a file was made.
const KEYS: &str = "corral.random.";
/// Changes whenever the same recipe gives another file, the vocabulary included.
const VERSION: u32 = 1;
/// Standard deviation of the weights in matrices, about that of trained models; norms are 1.
const DEVIATION: f32 = 0.02;
/// llama.cpp's type of a file that is F16 but for its norms.
const FILE_TYPE_F16: u32 = 1;
/// At the end of the name of the file with the weights as they were drawn.
const WEIGHTS: &str = "weights";
/// And of the file that the quantizer writes.
const PART: &str = "part";

/// What a model is made by.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What its shape is called; two shapes of one name are taken for the same.
    pub name: &'static str,
    /// Its layers, stored as F16 before they are quantized.
    pub shape: Qwen3,
    /// Tokens of the vocabulary made for it, from 512 on.
    pub tokens: u32,
    /// What it is quantized to.
    pub quant: Quant,
    /// What weights and vocabulary follow from.
    pub seed: u64,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Weights are drawn and written; counted in weights.
    Writing,
    /// They are quantized; counted in tensors.
    Quantizing,
}

impl Recipe {
    /// Whether the file was made by this recipe. Not so for one that can't be read.
    pub fn made(&self, path: &Path) -> bool {
        metadata(path, KEYS).is_ok_and(|found| found == self.marks())
    }

    /// The files that lie beside `path` while it is made: for those who end the process meanwhile.
    pub fn beside(path: &Path) -> [PathBuf; 3] {
        let weights = path.with_added_extension(WEIGHTS);
        [
            weights.with_added_extension(PART),
            weights,
            path.with_added_extension(PART),
        ]
    }

    /// What a file made by it says of itself.
    fn marks(&self) -> Vec<(String, Value)> {
        let marks: [(&str, Value); 4] = [
            ("shape", self.name.into()),
            ("quant", self.quant.name().into()),
            ("seed", self.seed.into()),
            ("version", VERSION.into()),
        ];
        marks
            .map(|(key, value)| (format!("{KEYS}{key}"), value))
            .into()
    }

    /// Makes the file, in place of one that is there, and tells `watch` how much is done and of how
    /// much. Until it is whole, parts of it lie beside it, with more at the end of their names;
    /// after an error they are gone. Blocks for as long as it takes.
    pub fn write(
        &self,
        path: &Path,
        mut watch: impl FnMut(Stage, u64, u64) + 'static,
    ) -> Result<(), GgufError> {
        let tokenizer = Vocabulary::made(self.tokens, self.seed)?.metadata();
        let plan = Plan::new(&Shape::Qwen3(self.shape.clone()), tokenizer)?;
        let Some(mut plan) = plan else {
            return Err(GgufError::Invalid("the vocabulary has no tokens".into()));
        };
        plan.writer.set("general.file_type", FILE_TYPE_F16)?;
        for (key, value) in self.marks() {
            plan.writer.set(&key, value)?;
        }
        let is_quantized = self.quant != Quant::F16;
        let weights = Temporary(path.with_added_extension(WEIGHTS));
        let bytes = plan.writer.bytes();
        let quantized = if is_quantized {
            bytes / 16 * self.quant.bits()
        } else {
            0
        };
        check_room(path, bytes + quantized)?;
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let normal = Normal::new(&mut random);
        let (fillings, all) = (plan.fillings, plan.writer.weights());
        let mut done = 0;
        plan.writer.write(&weights.0, |number, _, weights| {
            match fillings[number] {
                Filling::Matrix => normal.fill(&mut random, weights),
                // The norms' gains: a Qwen3 has nothing else.
                _ => weights.fill(1.0),
            }
            done += weights.len() as u64;
            watch(Stage::Writing, done, all);
        })?;
        let whole = if is_quantized {
            let part = Temporary(path.with_added_extension(PART));
            let watch = move |done, all| watch(Stage::Quantizing, done, all);
            quantize(&weights.0, &part.0, self.quant, Box::new(watch))?;
            part
        } else {
            weights
        };
        std::fs::rename(&whole.0, path).map_err(|cause| GgufError::Write {
            path: path.to_owned(),
            cause,
        })
    }
}

/// A file that goes when this does, if it is there.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may have got another name, or never have been.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Says before the first byte is written if there is too little room for this many bytes.
fn check_room(path: &Path, needed: u64) -> Result<(), GgufError> {
    let folder = path.parent().filter(|name| !name.as_os_str().is_empty());
    // Where the system does not say how much is free, the writing itself will fail.
    let Ok(about) = rustix::fs::statvfs(folder.unwrap_or(Path::new("."))) else {
        return Ok(());
    };
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if free >= needed {
        return Ok(());
    }
    let (needed, free) = (needed.div_ceil(1_000_000), free / 1_000_000);
    Err(GgufError::Write {
        path: path.to_owned(),
        cause: std::io::Error::new(
            std::io::ErrorKind::StorageFull,
            format!(
                "it needs {needed} MB, and {free} MB are free there; make room or use another folder"
            ),
        ),
    })
}

/// Numbers of a normal distribution: drawn from 65,536 that were computed once, since a model wants
/// hundreds of millions.
struct Normal(Vec<f32>);

impl Normal {
    /// Computes them by Box and Muller's method.
    fn new(random: &mut ChaCha8Rng) -> Self {
        let mut numbers = Vec::with_capacity(1 << 16);
        while numbers.len() < 1 << 16 {
            // Above zero, as a logarithm wants it.
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
