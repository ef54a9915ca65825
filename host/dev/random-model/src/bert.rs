//! BERT: an encoder, with or without a head that ranks.

use super::{FEED_FORWARD, GgufError, HEADS, Plan, TensorType, WIDTH};

const LAYERS: u64 = 2;
/// Positions: each has a vector of its own.
const POSITIONS: u64 = 512;
/// Kinds of token; llama.cpp takes the first for all.
const TYPES: u64 = 2;
/// What `pooling_type` says of the first token's vector, and of a head's scores.
const POOL_CLS: u32 = 2;
const POOL_RANK: u32 = 4;

pub(super) fn bert(plan: &mut Plan, tokens: u64, ranks: bool) -> Result<(), GgufError> {
    plan.writer
        .set("tokenizer.ggml.token_type_count", TYPES as u32)?;
    plan.size("vocab_size", tokens)?;
    plan.size("embedding_length", WIDTH)?;
    plan.size("block_count", LAYERS)?;
    plan.size("context_length", POSITIONS)?;
    plan.size("feed_forward_length", FEED_FORWARD)?;
    plan.size("attention.head_count", HEADS)?;
    plan.set("attention.layer_norm_epsilon", 1e-12_f32)?;
    plan.set("attention.causal", false)?;
    plan.set("pooling_type", if ranks { POOL_RANK } else { POOL_CLS })?;
    let w = TensorType::F16;
    plan.matrix("token_embd.weight", w, WIDTH, tokens)?;
    plan.matrix("token_types.weight", TensorType::F32, WIDTH, TYPES)?;
    plan.matrix("position_embd.weight", TensorType::F32, WIDTH, POSITIONS)?;
    plan.gain("token_embd_norm.weight", WIDTH)?;
    plan.bias("token_embd_norm.bias", WIDTH)?;
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
            plan.matrix(&name(&format!("{part}.weight")), w, from, to)?;
            plan.bias(&name(&format!("{part}.bias")), to)?;
        }
        for norm in ["attn_output_norm", "layer_output_norm"] {
            plan.gain(&name(&format!("{norm}.weight")), WIDTH)?;
            plan.bias(&name(&format!("{norm}.bias")), WIDTH)?;
        }
    }
    if ranks {
        let labels = ["low", "middle", "high"].map(str::to_owned);
        let classes = labels.len() as u64;
        plan.set("classifier.output_labels", labels.to_vec())?;
        plan.matrix("cls.weight", w, WIDTH, WIDTH)?;
        plan.bias("cls.bias", WIDTH)?;
        plan.matrix("cls.output.weight", w, WIDTH, classes)?;
        plan.bias("cls.output.bias", classes)?;
    }
    Ok(())
}
