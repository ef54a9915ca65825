"""Embeddings by a forward pass of its own: `python reference_embeddings.py MODEL.gguf > FIXTURE.txt`.

Reads a GGUF file of architecture "qwen3" or "bert" with tensors in F16 or F32, computes in float64
with nothing but numpy (`pip install numpy`), and prints what the engine's tests compare with, in
host/engine/tests/embeddings/. For the demo model:

    python models/tiny/reference_embeddings.py models/tiny/tiny.gguf \\
        > host/engine/tests/embeddings/tiny.txt

and for those with random weights, `bert` and `bert-ranker`, which `corral-random-model` writes:

    cargo run --release --workspace --example write_model -- \\
        bert models/tiny/tiny.gguf /tmp/bert.gguf 7
    python models/tiny/reference_embeddings.py /tmp/bert.gguf \\
        > host/engine/tests/embeddings/bert.txt

For each input a line with its tokens, then one for each pooling: "cls" the first token's vector,
"last" the last one's, "mean" the mean, "tokens" all of them (short inputs only), "rank" the scores of
a head. Vectors are as the last norm gives them, not normalized.
"""

import struct
import sys

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
TYPES = {0: np.float32, 1: np.float16}
FOX = "The quick brown fox jumps over the lazy dog; 12 boxing wizards do not. "
TEXTS = ("1+1=", "34+57=", "reverse: stone", FOX, "17+25=42, 8+9=17, 30+12=42, " * 5, FOX * 6, FOX * 22)
LENGTHS = (1, 129, 500)  # of inputs of any tokens
SHORT = 7


class Gguf:
    """The metadata and the tensors of a GGUF file (version 3, little-endian)."""

    def __init__(self, path):
        self.bytes = open(path, "rb").read()
        self.at = 0
        magic, version, tensors, keys = struct.unpack("<4sIQQ", self.take(24))
        if magic != b"GGUF" or version != 3:
            sys.exit(f"{path} is no GGUF file of version 3")
        self.metadata = dict(self.pair() for _ in range(keys))
        heads = [self.head() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self.at // alignment) * alignment
        self.tensors = {name: self.load(start + offset, shape, kind) for name, shape, kind, offset in heads}

    def take(self, count):
        self.at += count
        return self.bytes[self.at - count : self.at]

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def text(self):
        return self.take(self.number("Q")).decode()

    def value(self, kind):
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind) for _ in range(count)]
        return self.number(SCALARS[kind])

    def pair(self):
        key = self.text()
        return key, self.value(self.number("I"))

    def head(self):
        name, dimensions = self.text(), self.number("I")
        shape = [self.number("Q") for _ in range(dimensions)]
        return name, shape[::-1], self.number("I"), self.number("Q")

    def load(self, offset, shape, kind):
        if kind not in TYPES:
            sys.exit(f"tensors of type {kind} can't be read; give a model in F16 or F32")
        count = int(np.prod(shape))
        return np.frombuffer(self.bytes, TYPES[kind], count, offset).reshape(shape).astype(np.float64)


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def rms_norm(x, gain, epsilon):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * gain


def layer_norm(x, w, name, epsilon):
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon)
    return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]


def attend(q, k, v, causal):
    """Attention of [tokens, heads, size] over [tokens, key heads, size], each shared by its group."""
    tokens, heads, size = q.shape
    out = np.empty((tokens, heads, v.shape[2]))
    hidden = np.triu(np.full((tokens, tokens), -np.inf), 1) if causal else 0.0
    for head in range(heads):
        shared = head // (heads // k.shape[1])
        weights = softmax(q[:, head] @ k[:, shared].T / np.sqrt(size) + hidden)
        out[:, head] = weights @ v[:, shared]
    return out.reshape(tokens, -1)


def rotate(x, base):
    """Rotary positions over pairs made of the halves of a head."""
    tokens, _, size = x.shape
    rates = base ** (-np.arange(size // 2) * 2.0 / size)
    angles = np.arange(tokens)[:, None, None] * rates
    a, b = x[..., : size // 2], x[..., size // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def qwen3(model, tokens):
    """A vector for each token, after the last norm."""
    w, about = model.tensors, lambda key: model.metadata[f"qwen3.{key}"]
    heads, kv_heads = about("attention.head_count"), about("attention.head_count_kv")
    size, epsilon = about("attention.key_length"), about("attention.layer_norm_rms_epsilon")
    base, count = about("rope.freq_base"), len(tokens)
    x = w["token_embd.weight"][tokens]
    for layer in range(about("block_count")):
        part = {name: w[f"blk.{layer}.{name}.weight"] for name in QWEN3_LAYER}
        h = rms_norm(x, part["attn_norm"], epsilon)
        q = (h @ part["attn_q"].T).reshape(count, heads, size)
        k = (h @ part["attn_k"].T).reshape(count, kv_heads, size)
        v = (h @ part["attn_v"].T).reshape(count, kv_heads, size)
        q = rotate(rms_norm(q, part["attn_q_norm"], epsilon), base)
        k = rotate(rms_norm(k, part["attn_k_norm"], epsilon), base)
        x = x + attend(q, k, v, causal=True) @ part["attn_output"].T
        h = rms_norm(x, part["ffn_norm"], epsilon)
        gate = h @ part["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up"].T)) @ part["ffn_down"].T
    return rms_norm(x, w["output_norm.weight"], epsilon)


QWEN3_LAYER = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


def bert(model, tokens):
    """A vector for each token, after the last layer's norm."""
    w, about = model.tensors, lambda key: model.metadata[f"bert.{key}"]
    heads, epsilon = about("attention.head_count"), about("attention.layer_norm_epsilon")
    linear = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]  # noqa: E731
    x = w["token_embd.weight"][tokens] + w["token_types.weight"][0]
    x = layer_norm(x + w["position_embd.weight"][: len(tokens)], w, "token_embd_norm", epsilon)
    for layer in range(about("block_count")):
        name = f"blk.{layer}"
        q, k, v = (linear(x, f"{name}.attn_{part}").reshape(len(tokens), heads, -1) for part in "qkv")
        x = x + linear(attend(q, k, v, causal=False), f"{name}.attn_output")
        x = layer_norm(x, w, f"{name}.attn_output_norm", epsilon)
        up = linear(x, f"{name}.ffn_up")
        gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = layer_norm(x + linear(gelu, f"{name}.ffn_down"), w, f"{name}.layer_output_norm", epsilon)
    return x


def scores(model, first):
    """What the head of a reranker says of the first token's vector."""
    w = model.tensors
    dense = np.tanh(first @ w["cls.weight"].T + w["cls.bias"])
    return dense @ w["cls.output.weight"].T + w["cls.output.bias"]


def inputs(model):
    """Texts, of which each character is a token in the vocabulary of the demo model, and any tokens."""
    names = model.metadata["tokenizer.ggml.tokens"]
    number = {name: token for token, name in enumerate(names)}
    random = np.random.default_rng(1)
    for text in TEXTS:
        yield [number[character.replace(" ", "\u0120")] for character in text]
    for length in LENGTHS:
        yield list(random.integers(0, len(names), length))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python reference_embeddings.py MODEL.gguf > FIXTURE.txt")
    model = Gguf(sys.argv[1])
    architecture = model.metadata["general.architecture"]
    forward = {"qwen3": qwen3, "bert": bert}.get(architecture)
    if forward is None:
        sys.exit(f"the architecture {architecture} is none of qwen3 and bert")
    for tokens in inputs(model):
        if len(tokens) > model.metadata[f"{architecture}.context_length"]:
            continue
        vectors = forward(model, tokens)
        rows = {"cls": vectors[0], "last": vectors[-1], "mean": vectors.mean(axis=0)}
        if len(tokens) <= SHORT:
            rows["tokens"] = vectors.reshape(-1)
        if "cls.output.weight" in model.tensors:
            rows = {"rank": scores(model, vectors[0])}
        print("input", *tokens)
        for name, numbers in rows.items():
            print(name, *(f"{number:.6g}" for number in numbers))


if __name__ == "__main__":
    main()
