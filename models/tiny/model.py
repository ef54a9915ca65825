"""The network: a small Qwen3-style decoder, as plain functions over a dictionary of arrays.

Parameters carry the names and the [out, in] layout that GGUF and llama.cpp use, so the export is
a copy and the evaluation can run the very tensors of the file. Queries and keys are normalized
per head, rotary positions pair the halves of a head (llama.cpp's NEOX kind), heads share key/value
heads two by two, the feed-forward is gated by SiLU, and the embedding is also the output matrix.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Config:
    vocab: int = 264
    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    feed_forward: int = 384
    context: int = 4096
    rope_base: float = 10000.0
    norm_eps: float = 1e-6


# Normalized queries and keys score at most gain_q * gain_k * sqrt(head_size). To single out one of
# thousands of keys takes a lead of 12 or so, which gains of one (at most 8) cannot give.
SHARPNESS = 1.75
BLOCK = 512  # queries handled at once; a block looks only at the keys up to its own end


def initial_parameters(config, seed):
    """Return fresh parameters; matrices that write to the residual stream start at zero."""
    rng = np.random.default_rng(seed)
    c, q, kv = config, config.heads * config.head_size, config.kv_heads * config.head_size

    def matrix(rows, columns, scale=1.0):
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    p = {
        "token_embd.weight": (rng.standard_normal((c.vocab, c.width)) * 0.05).astype(np.float32),
        "output_norm.weight": np.ones(c.width, np.float32),
    }
    for i in range(c.layers):
        p |= {
            f"blk.{i}.attn_norm.weight": np.ones(c.width, np.float32),
            f"blk.{i}.attn_q.weight": matrix(q, c.width),
            f"blk.{i}.attn_k.weight": matrix(kv, c.width),
            f"blk.{i}.attn_v.weight": matrix(kv, c.width),
            f"blk.{i}.attn_q_norm.weight": np.full(c.head_size, SHARPNESS, np.float32),
            f"blk.{i}.attn_k_norm.weight": np.full(c.head_size, SHARPNESS, np.float32),
            f"blk.{i}.attn_output.weight": matrix(c.width, q, 0.0),
            f"blk.{i}.ffn_norm.weight": np.ones(c.width, np.float32),
            f"blk.{i}.ffn_gate.weight": matrix(c.feed_forward, c.width),
            f"blk.{i}.ffn_up.weight": matrix(c.feed_forward, c.width),
            f"blk.{i}.ffn_down.weight": matrix(c.width, c.feed_forward, 0.0),
        }
    return p


def rms_norm(x, gain, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rotation(positions, config):
    """Return the cosines and sines of the rotary angles, [batch, length, 1, head_size / 2] each."""
    half = config.head_size // 2
    frequency = config.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x, cos, sin):
    """Turn each pair (i, i + half) of x [batch, length, heads, head_size] by its angle."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, v, segments):
    """Causal attention; a token sees its own segment and segment 0, which all share.

    q [batch, length, heads, size], k and v [batch, length, kv_heads, size], segments [batch, length].
    The query heads of one key/value head are rows of one matrix: products of few large matrices are
    what a CPU does well.
    """
    batch, length, heads, size = q.shape
    kv_heads, group = k.shape[2], heads // k.shape[2]
    pairs = batch * kv_heads
    q = (q / np.sqrt(size)).reshape(batch, length, kv_heads, group, size).transpose(0, 2, 3, 1, 4)
    k, v = (x.transpose(0, 2, 1, 3).reshape(pairs, length, size) for x in (k, v))
    out = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        own, seen = segments[:, start:end, None], segments[:, None, :end]
        causal = np.arange(start, end)[:, None] >= np.arange(end)[None, :]
        bias = jnp.where(((own == seen) | (seen == 0)) & causal, 0.0, -1e30)[:, None, None]
        asked = q[:, :, :, start:end].reshape(pairs, group * (end - start), size)
        scores = jnp.einsum("nqd,nsd->nqs", asked, k[:, :end])
        scores = scores.reshape(batch, kv_heads, group, end - start, end) + bias
        raised = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
        mixed = jnp.einsum("nqs,nsd->nqd", raised.reshape(pairs, -1, end), v[:, :end])
        mixed = mixed.reshape(batch, kv_heads, group, end - start, size) / raised.sum(axis=-1, keepdims=True)
        out.append(mixed)
    return jnp.concatenate(out, axis=3).transpose(0, 3, 1, 2, 4).reshape(batch, length, heads * size)


def forward(p, tokens, positions, segments, config):
    """Return logits [batch, length, vocab] for tokens, positions and segments [batch, length]."""
    c = config
    batch, length = tokens.shape
    cos, sin = rotation(positions, c)
    x = p["token_embd.weight"][tokens]
    for i in range(c.layers):
        w = {name: p[f"blk.{i}.{name}.weight"] for name in LAYER_TENSORS}
        h = rms_norm(x, w["attn_norm"], c.norm_eps)
        q = (h @ w["attn_q"].T).reshape(batch, length, c.heads, c.head_size)
        k = (h @ w["attn_k"].T).reshape(batch, length, c.kv_heads, c.head_size)
        v = (h @ w["attn_v"].T).reshape(batch, length, c.kv_heads, c.head_size)
        q = rotate(rms_norm(q, w["attn_q_norm"], c.norm_eps), cos, sin)
        k = rotate(rms_norm(k, w["attn_k_norm"], c.norm_eps), cos, sin)
        x = x + attention(q, k, v, segments) @ w["attn_output"].T
        h = rms_norm(x, w["ffn_norm"], c.norm_eps)
        x = x + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return rms_norm(x, p["output_norm.weight"], c.norm_eps) @ p["token_embd.weight"].T


LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
