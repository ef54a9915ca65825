//! Writes GGUF models with random weights, for tests and benchmarks. The same seed gives the same file.
//!
//! [`write_model`] writes a small model of an [`Architecture`] with the vocabulary of another file: its output has no
//! meaning but depends on the whole input, so tests can check each kind of memory. A [`RandomModel`] has a real model's
//! size and its own vocabulary, and is quantized by llama.cpp. A [`PaddedModel`] answers as another one, but is slower.
//!
//! Names and dimensions of tensors follow llama.cpp's loaders (`src/models/*.cpp`, `src/llama-arch.cpp`).

#![forbid(unsafe_code)]

pub use corral_llama::gguf::{GgufError, TensorType};
pub use corral_llama::quantize::Quant;
pub use padded_model::PaddedModel;
pub use random_model::RandomModel;

use corral_llama::gguf::{Tensor, Value, Writer, metadata};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;

pub mod audio_projector;
mod bert;
pub mod image_projector;
mod padded_model;
mod random_model;
mod vocabulary;

/// Positions in the window of [`Architecture::SlidingWindow`], the token's own included.
pub const WINDOW: u32 = 16;

/// Width of the small architectures.
const WIDTH: u64 = 64;
/// Length of their feed-forward layers.
const FEED_FORWARD: u64 = 128;
/// Heads of their queries, and heads of their keys and values.
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_SIZE: u64 = WIDTH / HEADS;
/// Their context length.
const CONTEXT: u64 = 4096;
/// Inner width of Mamba; llama.cpp requires twice the width.
const INNER: u64 = 2 * WIDTH;
/// State size of each inner channel.
const STATE: u64 = 8;
/// Kernel size of the convolution.
const CONVOLUTION: u64 = 4;
/// Rank of the time step projection.
const STEP_RANK: u64 = 4;

/// The architecture of a model.
#[derive(Clone, Debug)]
pub enum Architecture {
    /// Recurrent: one state for all positions. "mamba", two layers.
    Mamba,
    /// A recurrent layer, then one with attention. "jamba".
    Hybrid,
    /// Attention over a window of [`WINDOW`] positions, alternating with full attention. "gemma3", four layers.
    SlidingWindow,
    /// Full attention. "qwen3", of any size.
    Qwen3(Qwen3),
    /// An encoder. "bert", two layers, 512 positions.
    Bert {
        /// Whether it has a reranker's head with three scores.
        ranks: bool,
    },
}

/// The sizes of a Qwen3.
#[derive(Clone, Debug)]
pub struct Qwen3 {
    /// Number of layers.
    pub layers: u32,
    /// Length of an embedding.
    pub width: u32,
    /// Length of the feed-forward layers.
    pub feed_forward: u32,
    /// Heads of queries.
    pub heads: u32,
    /// Heads of keys and values: a divisor of `heads`.
    pub kv_heads: u32,
    /// Length of a head.
    pub head_size: u32,
    /// Context length.
    pub context: u32,
    /// Frequency base of RoPE.
    pub rope_base: f32,
    /// Type of the matrices.
    pub matrices: TensorType,
    /// Type of the token embeddings, which are the output matrix too.
    pub embedding: TensorType,
}

impl Qwen3 {
    /// Two small layers, for tests.
    pub fn tiny() -> Self {
        Self {
            layers: 2,
            width: 64,
            feed_forward: 128,
            heads: 4,
            kv_heads: 2,
            head_size: 16,
            context: 4096,
            rope_base: 10_000.0,
            matrices: TensorType::F16,
            embedding: TensorType::F16,
        }
    }

    /// The sizes of Qwen3-0.6B.
    pub fn qwen3_0_6b() -> Self {
        Self {
            layers: 28,
            width: 1024,
            feed_forward: 3072,
            heads: 16,
            kv_heads: 8,
            head_size: 128,
            context: 40_960,
            rope_base: 1_000_000.0,
            matrices: TensorType::F16,
            embedding: TensorType::F16,
        }
    }
}

/// Writes a model to `path`, with the vocabulary of the GGUF file `vocabulary`.
pub fn write_model(
    architecture: &Architecture,
    vocabulary: &Path,
    path: &Path,
    seed: u64,
) -> Result<(), GgufError> {
    let tokenizer = metadata(vocabulary, "tokenizer.")?;
    let builder = ModelBuilder::new(architecture, tokenizer)?.ok_or_else(|| GgufError::Read {
        path: vocabulary.to_owned(),
        cause: format!("the key {TOKENS} is missing"),
    })?;
    builder.write(path, seed)
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// The distribution of a tensor's weights.
#[derive(Clone, Copy)]
enum Distribution {
    /// Uniform with variance 1 / row length, so that a product keeps the scale of its input.
    Matrix,
    /// Gains of a norm, around 1.
    Gain,
    /// Biases, around 0.
    Bias,
    /// Log decay rates of a state, negative: from slow to fast along the state.
    Decay,
    /// Biases of the time step before the softplus: steps of 0.02 to 0.1, so that a state remembers tens of tokens.
    Step,
}

/// Collects the header of a model file and the distribution of each tensor.
struct ModelBuilder {
    writer: Writer,
    distributions: Vec<Distribution>,
    name: &'static str,
}

impl ModelBuilder {
    /// The header of a model. `None` if `tokenizer` has no tokens.
    fn new(
        architecture: &Architecture,
        tokenizer: Vec<(String, Value)>,
    ) -> Result<Option<Self>, GgufError> {
        let tokens = tokenizer.iter().find_map(|(key, value)| match value {
            Value::Texts(tokens) if key == TOKENS => Some(tokens.len() as u64),
            _ => None,
        });
        let Some(tokens) = tokens else {
            return Ok(None);
        };
        let mut builder = Self {
            writer: Writer::new()?,
            distributions: Vec::new(),
            name: match architecture {
                Architecture::Mamba => "mamba",
                Architecture::Hybrid => "jamba",
                Architecture::SlidingWindow => "gemma3",
                Architecture::Qwen3(_) => "qwen3",
                Architecture::Bert { .. } => "bert",
            },
        };
        builder.writer.set("general.architecture", builder.name)?;
        builder.writer.set("general.name", "Random weights")?;
        for (key, value) in tokenizer {
            builder.writer.set(&key, value)?;
        }
        match architecture {
            Architecture::Mamba => mamba(&mut builder, tokens)?,
            Architecture::Hybrid => hybrid(&mut builder, tokens)?,
            Architecture::SlidingWindow => sliding_window(&mut builder, tokens)?,
            Architecture::Qwen3(sizes) => qwen3(&mut builder, sizes, tokens)?,
            Architecture::Bert { ranks } => bert::bert(&mut builder, tokens, *ranks)?,
        }
        Ok(Some(builder))
    }

    /// Sets a key of the architecture.
    fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), GgufError> {
        self.writer.set(&format!("{}.{key}", self.name), value)
    }

    /// Sets a key of the architecture to a size.
    fn set_size(&mut self, key: &str, value: u64) -> Result<(), GgufError> {
        let value = u32::try_from(value)
            .map_err(|_| GgufError::Invalid(format!("{key} of {value} is too large")))?;
        self.set(key, value)
    }

    fn tensor(
        &mut self,
        name: &str,
        distribution: Distribution,
        tensor_type: TensorType,
        dimensions: &[u64],
    ) -> Result<(), GgufError> {
        self.writer.tensor(name, tensor_type, dimensions)?;
        self.distributions.push(distribution);
        Ok(())
    }

    fn matrix(
        &mut self,
        name: &str,
        tensor_type: TensorType,
        from: u64,
        to: u64,
    ) -> Result<(), GgufError> {
        self.tensor(name, Distribution::Matrix, tensor_type, &[from, to])
    }

    fn gain(&mut self, name: &str, width: u64) -> Result<(), GgufError> {
        self.tensor(name, Distribution::Gain, TensorType::F32, &[width])
    }

    fn bias(&mut self, name: &str, width: u64) -> Result<(), GgufError> {
        self.tensor(name, Distribution::Bias, TensorType::F32, &[width])
    }

    /// Adds what most architectures share: sizes, token embeddings (the output matrix too) and the last norm.
    fn common(
        &mut self,
        tokens: u64,
        (width, layers, context): (u64, u64, u64),
        embedding: TensorType,
    ) -> Result<(), GgufError> {
        self.set_size("vocab_size", tokens)?;
        self.set_size("embedding_length", width)?;
        self.set_size("block_count", layers)?;
        self.set_size("context_length", context)?;
        self.set("attention.layer_norm_rms_epsilon", 1e-6_f32)?;
        self.matrix("token_embd.weight", embedding, width, tokens)?;
        self.gain("output_norm.weight", width)
    }

    /// Adds a Mamba layer.
    fn mamba_layer(&mut self, layer: u64) -> Result<(), GgufError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let w = TensorType::F16;
        self.matrix(&name("ssm_in.weight"), w, WIDTH, 2 * INNER)?;
        let f = TensorType::F32;
        self.matrix(&name("ssm_conv1d.weight"), f, CONVOLUTION, INNER)?;
        self.gain(&name("ssm_conv1d.bias"), INNER)?;
        self.matrix(&name("ssm_x.weight"), w, INNER, STEP_RANK + 2 * STATE)?;
        self.matrix(&name("ssm_dt.weight"), f, STEP_RANK, INNER)?;
        self.tensor(&name("ssm_dt.bias"), Distribution::Step, f, &[INNER])?;
        self.tensor(&name("ssm_a"), Distribution::Decay, f, &[STATE, INNER])?;
        self.gain(&name("ssm_d"), INNER)?;
        self.matrix(&name("ssm_out.weight"), w, INNER, WIDTH)
    }

    fn mamba_sizes(&mut self) -> Result<(), GgufError> {
        self.set_size("ssm.conv_kernel", CONVOLUTION)?;
        self.set_size("ssm.inner_size", INNER)?;
        self.set_size("ssm.state_size", STATE)?;
        self.set_size("ssm.time_step_rank", STEP_RANK)
    }

    /// Adds the four matrices of attention.
    fn attention(
        &mut self,
        layer: u64,
        width: u64,
        (heads, kv_heads, head_size): (u64, u64, u64),
        tensor_type: TensorType,
    ) -> Result<(), GgufError> {
        let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
        self.matrix(&name("q"), tensor_type, width, heads * head_size)?;
        self.matrix(&name("k"), tensor_type, width, kv_heads * head_size)?;
        self.matrix(&name("v"), tensor_type, width, kv_heads * head_size)?;
        self.matrix(&name("output"), tensor_type, heads * head_size, width)
    }

    /// Adds the norm and the three matrices of a feed-forward layer.
    fn feed_forward(
        &mut self,
        layer: u64,
        width: u64,
        inner: u64,
        tensor_type: TensorType,
    ) -> Result<(), GgufError> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        self.gain(&name("norm"), width)?;
        self.matrix(&name("gate"), tensor_type, width, inner)?;
        self.matrix(&name("up"), tensor_type, width, inner)?;
        self.matrix(&name("down"), tensor_type, inner, width)
    }

    fn heads(&mut self, heads: u64, kv_heads: u64, head_size: u64) -> Result<(), GgufError> {
        self.set_size("attention.head_count", heads)?;
        self.set_size("attention.head_count_kv", kv_heads)?;
        self.set_size("attention.key_length", head_size)?;
        self.set_size("attention.value_length", head_size)?;
        self.set_size("rope.dimension_count", head_size)
    }

    fn write(self, path: &Path, seed: u64) -> Result<(), GgufError> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        self.writer.write(path, |index, tensor, weights| {
            fill(tensor, self.distributions[index], &mut random, weights);
        })
    }
}

fn fill(tensor: &Tensor, distribution: Distribution, random: &mut ChaCha8Rng, weights: &mut [f32]) {
    let row = tensor.row;
    // A uniform number from -a to a has variance a² / 3.
    let bound = (3.0 / row as f32).sqrt();
    for (index, weight) in weights.iter_mut().enumerate() {
        let uniform = random.random::<f32>();
        *weight = match distribution {
            Distribution::Matrix => bound * (2.0 * uniform - 1.0),
            Distribution::Gain => 0.75 + 0.5 * uniform,
            Distribution::Bias => 0.5 * uniform - 0.25,
            Distribution::Decay => -((index % row) as f32 + 0.5 + 0.5 * uniform),
            Distribution::Step => -4.0 + 1.8 * uniform,
        };
    }
}

fn mamba(builder: &mut ModelBuilder, tokens: u64) -> Result<(), GgufError> {
    const LAYERS: u64 = 2;
    builder.common(tokens, (WIDTH, LAYERS, CONTEXT), TensorType::F16)?;
    builder.set_size("feed_forward_length", 0)?;
    builder.set_size("attention.head_count", 0)?;
    builder.mamba_sizes()?;
    for layer in 0..LAYERS {
        builder.gain(&format!("blk.{layer}.attn_norm.weight"), WIDTH)?;
        builder.mamba_layer(layer)?;
    }
    Ok(())
}

fn hybrid(builder: &mut ModelBuilder, tokens: u64) -> Result<(), GgufError> {
    builder.common(tokens, (WIDTH, 2, CONTEXT), TensorType::F16)?;
    builder.set_size("feed_forward_length", FEED_FORWARD)?;
    builder.set_size("attention.head_count", HEADS)?;
    // A layer without KV heads is recurrent.
    builder.set("attention.head_count_kv", vec![0, KV_HEADS as u32])?;
    builder.mamba_sizes()?;
    for layer in 0..2 {
        builder.gain(&format!("blk.{layer}.attn_norm.weight"), WIDTH)?;
        if layer == 0 {
            builder.mamba_layer(layer)?;
            builder.gain(&format!("blk.{layer}.ssm_dt_norm.weight"), STEP_RANK)?;
            builder.gain(&format!("blk.{layer}.ssm_b_norm.weight"), STATE)?;
            builder.gain(&format!("blk.{layer}.ssm_c_norm.weight"), STATE)?;
        } else {
            builder.attention(layer, WIDTH, (HEADS, KV_HEADS, HEAD_SIZE), TensorType::F16)?;
        }
        builder.feed_forward(layer, WIDTH, FEED_FORWARD, TensorType::F16)?;
    }
    Ok(())
}

fn sliding_window(builder: &mut ModelBuilder, tokens: u64) -> Result<(), GgufError> {
    const LAYERS: u64 = 4;
    builder.common(tokens, (WIDTH, LAYERS, CONTEXT), TensorType::F16)?;
    builder.set_size("feed_forward_length", FEED_FORWARD)?;
    builder.heads(HEADS, KV_HEADS, HEAD_SIZE)?;
    builder.set("attention.sliding_window", WINDOW)?;
    // Every second layer has full attention.
    builder.set("attention.sliding_window_pattern", 2_u32)?;
    for layer in 0..LAYERS {
        for (norm, width) in [
            ("attn_norm", WIDTH),
            ("attn_q_norm", HEAD_SIZE),
            ("attn_k_norm", HEAD_SIZE),
            ("post_attention_norm", WIDTH),
            ("post_ffw_norm", WIDTH),
        ] {
            builder.gain(&format!("blk.{layer}.{norm}.weight"), width)?;
        }
        builder.attention(layer, WIDTH, (HEADS, KV_HEADS, HEAD_SIZE), TensorType::F16)?;
        builder.feed_forward(layer, WIDTH, FEED_FORWARD, TensorType::F16)?;
    }
    Ok(())
}

fn qwen3(builder: &mut ModelBuilder, sizes: &Qwen3, tokens: u64) -> Result<(), GgufError> {
    let (width, inner) = (u64::from(sizes.width), u64::from(sizes.feed_forward));
    let layers = u64::from(sizes.layers);
    let (heads, kv_heads) = (u64::from(sizes.heads), u64::from(sizes.kv_heads));
    let head_size = u64::from(sizes.head_size);
    let common = (width, layers, u64::from(sizes.context));
    builder.common(tokens, common, sizes.embedding)?;
    builder.set_size("feed_forward_length", inner)?;
    builder.heads(heads, kv_heads, head_size)?;
    builder.set("rope.freq_base", sizes.rope_base)?;
    for layer in 0..layers {
        for (norm, width) in [
            ("attn_norm", width),
            ("attn_q_norm", head_size),
            ("attn_k_norm", head_size),
        ] {
            builder.gain(&format!("blk.{layer}.{norm}.weight"), width)?;
        }
        builder.attention(layer, width, (heads, kv_heads, head_size), sizes.matrices)?;
        builder.feed_forward(layer, width, inner, sizes.matrices)?;
    }
    Ok(())
}
