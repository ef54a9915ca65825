//! Models with random weights, written as GGUF: a second of work in place of a download.
//!
//! They say nothing sensible, but what they say depends on all that they read, so that tests see
//! how each kind of memory behaves ([`Shape::Mamba`], [`Shape::Hybrid`], [`Shape::SlidingWindow`])
//! how encoders see ([`Shape::Bert`]) with the vocabulary of another file ([`write_random`]); and
//! benchmarks have a model of the size they want, with a vocabulary of its own, quantised by
//! llama.cpp ([`Recipe`]). The same seed gives the same file.
//!
//! Names and dimensions are what llama.cpp's loaders ask for (`src/models/*.cpp`,
//! `src/llama-arch.cpp`).

#![forbid(unsafe_code)]

pub use corral_llama::gguf::{GgufError, TensorType};
pub use corral_llama::quantize::Quant;
pub use recipe::{Recipe, Stage};

use corral_llama::gguf::{Tensor, Value, Writer, metadata};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;

mod bert;
mod recipe;
mod vocabulary;

/// Positions that a token sees in the layers of [`Shape::SlidingWindow`] that have a window: itself
/// and those just before it.
pub const WINDOW: u32 = 16;

/// Width of the small shapes.
const WIDTH: u64 = 64;
/// Length of their feed-forward layers.
const FEED_FORWARD: u64 = 128;
/// Heads of their attention, and heads of keys and values.
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_SIZE: u64 = WIDTH / HEADS;
/// Positions that the small shapes say they were trained on.
const CONTEXT: u64 = 4096;
/// Inner width of Mamba; llama.cpp wants twice the width.
const INNER: u64 = 2 * WIDTH;
/// Numbers in the state of each of the inner channels.
const STATE: u64 = 8;
/// Tokens that its convolution sees.
const CONVOLUTION: u64 = 4;
/// Width through which the time step is computed.
const STEP_RANK: u64 = 4;

/// What a model looks like.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Purely recurrent: one state for all that was read. Architecture "mamba", two layers.
    Mamba,
    /// A recurrent layer, then one with attention. Architecture "jamba".
    Hybrid,
    /// Attention over a window of [`WINDOW`] positions and attention over all, in turns of one
    /// layer each. Architecture "gemma3", four layers.
    SlidingWindow,
    /// Plain attention. Architecture "qwen3", of any size.
    Qwen3(Qwen3),
    /// An encoder: attention over all of a text at once, and no text of its own. Architecture
    /// "bert", two layers, 512 positions.
    Bert {
        /// With a reranker's head, which gives three scores.
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
    /// Heads of attention.
    pub heads: u32,
    /// Heads of keys and values: a divisor of `heads`.
    pub kv_heads: u32,
    /// Length of a head.
    pub head_size: u32,
    /// Positions it says it was trained on.
    pub context: u32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// How the matrices are stored.
    pub matrices: TensorType,
    /// How the embedding is stored, which is the output matrix too.
    pub embedding: TensorType,
}

impl Qwen3 {
    /// Two layers, for tests.
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

/// Writes a model of `shape` to `path`, with the vocabulary of the GGUF file `vocabulary` and
/// weights that `seed` fixes.
pub fn write_random(
    shape: &Shape,
    vocabulary: &Path,
    path: &Path,
    seed: u64,
) -> Result<(), GgufError> {
    let tokenizer = metadata(vocabulary, "tokenizer.")?;
    let plan = Plan::new(shape, tokenizer)?.ok_or_else(|| GgufError::Read {
        path: vocabulary.to_owned(),
        cause: format!("it has no {TOKENS}"),
    })?;
    plan.write(path, seed)
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// What the weights of a tensor are drawn from.
#[derive(Clone, Copy)]
enum Filling {
    /// Uniform with variance 1 / row length, so that a product keeps the size of what goes in.
    Matrix,
    /// Gains of a norm: about one.
    Gain,
    /// What is added: about zero.
    Bias,
    /// Logarithmic rates of a state's decay, negative: from slow to fast along the state.
    Decay,
    /// Biases of the time step before the softplus: steps of 0.02 to 0.1, so that a state keeps
    /// something of tens of tokens.
    Step,
}

/// A file in the making.
struct Plan {
    writer: Writer,
    fillings: Vec<Filling>,
    architecture: &'static str,
}

impl Plan {
    /// A model of `shape` with a vocabulary. `None` if `tokenizer` has no tokens.
    fn new(shape: &Shape, tokenizer: Vec<(String, Value)>) -> Result<Option<Self>, GgufError> {
        let tokens = tokenizer.iter().find_map(|(key, value)| match value {
            Value::Texts(tokens) if key == TOKENS => Some(tokens.len() as u64),
            _ => None,
        });
        let Some(tokens) = tokens else {
            return Ok(None);
        };
        let mut plan = Plan {
            writer: Writer::new().ok_or_else(|| {
                GgufError::Invalid("there is no memory for the file's head".into())
            })?,
            fillings: Vec::new(),
            architecture: match shape {
                Shape::Mamba => "mamba",
                Shape::Hybrid => "jamba",
                Shape::SlidingWindow => "gemma3",
                Shape::Qwen3(_) => "qwen3",
                Shape::Bert { .. } => "bert",
            },
        };
        plan.writer.set("general.architecture", plan.architecture)?;
        plan.writer.set("general.name", "Random weights")?;
        for (key, value) in tokenizer {
            plan.writer.set(&key, value)?;
        }
        match shape {
            Shape::Mamba => mamba(&mut plan, tokens)?,
            Shape::Hybrid => hybrid(&mut plan, tokens)?,
            Shape::SlidingWindow => sliding_window(&mut plan, tokens)?,
            Shape::Qwen3(sizes) => qwen3(&mut plan, sizes, tokens)?,
            Shape::Bert { ranks } => bert::bert(&mut plan, tokens, *ranks)?,
        }
        Ok(Some(plan))
    }

    /// Sets a key of the architecture.
    fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), GgufError> {
        self.writer
            .set(&format!("{}.{key}", self.architecture), value)
    }

    /// Sets a key of the architecture to a size.
    fn size(&mut self, key: &str, value: u64) -> Result<(), GgufError> {
        let value = u32::try_from(value)
            .map_err(|_| GgufError::Invalid(format!("{key} of {value} is too large")))?;
        self.set(key, value)
    }

    fn tensor(
        &mut self,
        name: &str,
        filling: Filling,
        tensor_type: TensorType,
        dimensions: &[u64],
    ) -> Result<(), GgufError> {
        self.writer.tensor(name, tensor_type, dimensions)?;
        self.fillings.push(filling);
        Ok(())
    }

    fn matrix(
        &mut self,
        name: &str,
        tensor_type: TensorType,
        from: u64,
        to: u64,
    ) -> Result<(), GgufError> {
        self.tensor(name, Filling::Matrix, tensor_type, &[from, to])
    }

    fn gain(&mut self, name: &str, width: u64) -> Result<(), GgufError> {
        self.tensor(name, Filling::Gain, TensorType::F32, &[width])
    }

    fn bias(&mut self, name: &str, width: u64) -> Result<(), GgufError> {
        self.tensor(name, Filling::Bias, TensorType::F32, &[width])
    }

    /// What all shapes have: sizes, the embedding (the output matrix too), the last norm.
    fn frame(
        &mut self,
        tokens: u64,
        (width, layers, context): (u64, u64, u64),
        embedding: TensorType,
    ) -> Result<(), GgufError> {
        self.size("vocab_size", tokens)?;
        self.size("embedding_length", width)?;
        self.size("block_count", layers)?;
        self.size("context_length", context)?;
        self.set("attention.layer_norm_rms_epsilon", 1e-6_f32)?;
        self.matrix("token_embd.weight", embedding, width, tokens)?;
        self.gain("output_norm.weight", width)
    }

    /// A recurrent layer of Mamba.
    fn mamba_layer(&mut self, layer: u64) -> Result<(), GgufError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let w = TensorType::F16;
        self.matrix(&name("ssm_in.weight"), w, WIDTH, 2 * INNER)?;
        let f = TensorType::F32;
        self.matrix(&name("ssm_conv1d.weight"), f, CONVOLUTION, INNER)?;
        self.gain(&name("ssm_conv1d.bias"), INNER)?;
        self.matrix(&name("ssm_x.weight"), w, INNER, STEP_RANK + 2 * STATE)?;
        self.matrix(&name("ssm_dt.weight"), f, STEP_RANK, INNER)?;
        self.tensor(&name("ssm_dt.bias"), Filling::Step, f, &[INNER])?;
        self.tensor(&name("ssm_a"), Filling::Decay, f, &[STATE, INNER])?;
        self.gain(&name("ssm_d"), INNER)?;
        self.matrix(&name("ssm_out.weight"), w, INNER, WIDTH)
    }

    fn mamba_sizes(&mut self) -> Result<(), GgufError> {
        self.size("ssm.conv_kernel", CONVOLUTION)?;
        self.size("ssm.inner_size", INNER)?;
        self.size("ssm.state_size", STATE)?;
        self.size("ssm.time_step_rank", STEP_RANK)
    }

    /// The four matrices of attention.
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

    /// The three matrices of a feed-forward layer and the norm before them.
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
        self.size("attention.head_count", heads)?;
        self.size("attention.head_count_kv", kv_heads)?;
        self.size("attention.key_length", head_size)?;
        self.size("attention.value_length", head_size)?;
        self.size("rope.dimension_count", head_size)
    }

    fn write(self, path: &Path, seed: u64) -> Result<(), GgufError> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        self.writer.write(path, |number, tensor, weights| {
            fill(tensor, self.fillings[number], &mut random, weights);
        })
    }
}

fn fill(tensor: &Tensor, filling: Filling, random: &mut ChaCha8Rng, weights: &mut [f32]) {
    let row = tensor.row;
    // A uniform number from -a to a has variance a² / 3.
    let reach = (3.0 / row as f32).sqrt();
    for (index, weight) in weights.iter_mut().enumerate() {
        let uniform = random.random::<f32>();
        *weight = match filling {
            Filling::Matrix => reach * (2.0 * uniform - 1.0),
            Filling::Gain => 0.75 + 0.5 * uniform,
            Filling::Bias => 0.5 * uniform - 0.25,
            Filling::Decay => -((index % row) as f32 + 0.5 + 0.5 * uniform),
            Filling::Step => -4.0 + 1.8 * uniform,
        };
    }
}

fn mamba(plan: &mut Plan, tokens: u64) -> Result<(), GgufError> {
    const LAYERS: u64 = 2;
    plan.frame(tokens, (WIDTH, LAYERS, CONTEXT), TensorType::F16)?;
    plan.size("feed_forward_length", 0)?;
    plan.size("attention.head_count", 0)?;
    plan.mamba_sizes()?;
    for layer in 0..LAYERS {
        plan.gain(&format!("blk.{layer}.attn_norm.weight"), WIDTH)?;
        plan.mamba_layer(layer)?;
    }
    Ok(())
}

fn hybrid(plan: &mut Plan, tokens: u64) -> Result<(), GgufError> {
    plan.frame(tokens, (WIDTH, 2, CONTEXT), TensorType::F16)?;
    plan.size("feed_forward_length", FEED_FORWARD)?;
    plan.size("attention.head_count", HEADS)?;
    // A layer without heads of keys is a recurrent one.
    plan.set("attention.head_count_kv", vec![0, KV_HEADS as u32])?;
    plan.mamba_sizes()?;
    for layer in 0..2 {
        plan.gain(&format!("blk.{layer}.attn_norm.weight"), WIDTH)?;
        if layer == 0 {
            plan.mamba_layer(layer)?;
            plan.gain(&format!("blk.{layer}.ssm_dt_norm.weight"), STEP_RANK)?;
            plan.gain(&format!("blk.{layer}.ssm_b_norm.weight"), STATE)?;
            plan.gain(&format!("blk.{layer}.ssm_c_norm.weight"), STATE)?;
        } else {
            plan.attention(layer, WIDTH, (HEADS, KV_HEADS, HEAD_SIZE), TensorType::F16)?;
        }
        plan.feed_forward(layer, WIDTH, FEED_FORWARD, TensorType::F16)?;
    }
    Ok(())
}

fn sliding_window(plan: &mut Plan, tokens: u64) -> Result<(), GgufError> {
    const LAYERS: u64 = 4;
    plan.frame(tokens, (WIDTH, LAYERS, CONTEXT), TensorType::F16)?;
    plan.size("feed_forward_length", FEED_FORWARD)?;
    plan.heads(HEADS, KV_HEADS, HEAD_SIZE)?;
    plan.set("attention.sliding_window", WINDOW)?;
    // Every second layer sees everything.
    plan.set("attention.sliding_window_pattern", 2_u32)?;
    for layer in 0..LAYERS {
        for (norm, width) in [
            ("attn_norm", WIDTH),
            ("attn_q_norm", HEAD_SIZE),
            ("attn_k_norm", HEAD_SIZE),
            ("post_attention_norm", WIDTH),
            ("post_ffw_norm", WIDTH),
        ] {
            plan.gain(&format!("blk.{layer}.{norm}.weight"), width)?;
        }
        plan.attention(layer, WIDTH, (HEADS, KV_HEADS, HEAD_SIZE), TensorType::F16)?;
        plan.feed_forward(layer, WIDTH, FEED_FORWARD, TensorType::F16)?;
    }
    Ok(())
}

fn qwen3(plan: &mut Plan, sizes: &Qwen3, tokens: u64) -> Result<(), GgufError> {
    let (width, inner) = (u64::from(sizes.width), u64::from(sizes.feed_forward));
    let layers = u64::from(sizes.layers);
    let (heads, kv_heads) = (u64::from(sizes.heads), u64::from(sizes.kv_heads));
    let head_size = u64::from(sizes.head_size);
    let frame = (width, layers, u64::from(sizes.context));
    plan.frame(tokens, frame, sizes.embedding)?;
    plan.size("feed_forward_length", inner)?;
    plan.heads(heads, kv_heads, head_size)?;
    plan.set("rope.freq_base", sizes.rope_base)?;
    for layer in 0..layers {
        for (norm, width) in [
            ("attn_norm", width),
            ("attn_q_norm", head_size),
            ("attn_k_norm", head_size),
        ] {
            plan.gain(&format!("blk.{layer}.{norm}.weight"), width)?;
        }
        plan.attention(layer, width, (heads, kv_heads, head_size), sizes.matrices)?;
        plan.feed_forward(layer, width, inner, sizes.matrices)?;
    }
    Ok(())
}
