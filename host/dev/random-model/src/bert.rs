//! BERT: an encoder, with or without a reranker's head.

use super::{FEED_FORWARD, GgufError, HEADS, ModelBuilder, TensorType, WIDTH};

const LAYERS: u64 = 2;
/// Number of positions; each has a vector.
const POSITIONS: u64 = 512;
/// Number of token types; llama.cpp uses the first for all tokens.
const TYPES: u64 = 2;
/// Values of `pooling_type`: the first token's vector, and a reranker's scores.
const POOL_CLS: u32 = 2;
const POOL_RANK: u32 = 4;

pub(super) fn bert(builder: &mut ModelBuilder, tokens: u64, ranks: bool) -> Result<(), GgufError> {
    builder
        .writer
        .set("tokenizer.ggml.token_type_count", TYPES as u32)?;
    builder.set_size("vocab_size", tokens)?;
    builder.set_size("embedding_length", WIDTH)?;
    builder.set_size("block_count", LAYERS)?;
    builder.set_size("context_length", POSITIONS)?;
    builder.set_size("feed_forward_length", FEED_FORWARD)?;
    builder.set_size("attention.head_count", HEADS)?;
    builder.set("attention.layer_norm_epsilon", 1e-12_f32)?;
    builder.set("attention.causal", false)?;
    builder.set("pooling_type", if ranks { POOL_RANK } else { POOL_CLS })?;
    let w = TensorType::F16;
    builder.matrix("token_embd.weight", w, WIDTH, tokens)?;
    builder.matrix("token_types.weight", TensorType::F32, WIDTH, TYPES)?;
    builder.matrix("position_embd.weight", TensorType::F32, WIDTH, POSITIONS)?;
    builder.gain("token_embd_norm.weight", WIDTH)?;
    builder.bias("token_embd_norm.bias", WIDTH)?;
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for (part, from, to) in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", WIDTH, FEED_FORWARD),
            ("ffn_down", FEED_FORWARD, WIDTH),
        ] {
            builder.matrix(&name(&format!("{part}.weight")), w, from, to)?;
            builder.bias(&name(&format!("{part}.bias")), to)?;
        }
        for norm in ["attn_output_norm", "layer_output_norm"] {
            builder.gain(&name(&format!("{norm}.weight")), WIDTH)?;
            builder.bias(&name(&format!("{norm}.bias")), WIDTH)?;
        }
    }
    if ranks {
        let labels = ["low", "middle", "high"].map(str::to_owned);
        let classes = labels.len() as u64;
        builder.set("classifier.output_labels", labels.to_vec())?;
        builder.matrix("cls.weight", w, WIDTH, WIDTH)?;
        builder.bias("cls.bias", WIDTH)?;
        builder.matrix("cls.output.weight", w, WIDTH, classes)?;
        builder.bias("cls.output.bias", classes)?;
    }
    Ok(())
}
