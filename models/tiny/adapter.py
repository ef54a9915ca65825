"""A LoRA adapter for the tiny model: its matrices, its file, and its training data.

For each adapted matrix W [out, in] of the model it holds A [rank, in] and B [out, rank]; the adapted
model computes with W + alpha / rank * B A (Hu et al., "LoRA", 2021). In the GGUF file the two carry
the name of W with `.lora_a` and `.lora_b` behind it, the form that llama.cpp reads.

It teaches what the model alone never does: answering a sum plus one. So a host that confuses the model
and its adapter gives a wrong answer.
"""

from dataclasses import replace

import gguf
import numpy as np

import documents
import tasks

RANK, ALPHA = 8, 16.0
ADAPTED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def initial_adapter(tensors, seed):
    """Return fresh pairs by the name of the matrix; with B zero the model is unchanged."""
    rng = np.random.default_rng(seed)
    names = [name for name in tensors if name.split(".")[-2] in ADAPTED]
    return {
        name: (
            (rng.standard_normal((RANK, tensors[name].shape[1])) / np.sqrt(tensors[name].shape[1])).astype(np.float32),
            np.zeros((tensors[name].shape[0], RANK), np.float32),
        )
        for name in names
    }


def adapted(tensors, adapter, scale=ALPHA / RANK):
    """Return the model's tensors with the adapter added."""
    return tensors | {name: tensors[name] + scale * (b @ a) for name, (a, b) in adapter.items()}


def write_adapter(path, adapter):
    w = gguf.GGUFWriter(str(path), "qwen3")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", ALPHA)
    w.add_name("Corral Tiny, plus one")
    w.add_description("Makes Corral Tiny answer a sum by one more than it is")
    w.add_license("Apache-2.0")
    for name, (a, b) in adapter.items():
        w.add_tensor(name + ".lora_a", np.ascontiguousarray(a, np.float16))
        w.add_tensor(name + ".lora_b", np.ascontiguousarray(b, np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read_adapter(path):
    """Return (pairs by the name of the matrix, scale) of the file."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: np.asarray(t.data, np.float32) for t in reader.tensors}
    pairs = {
        name.removesuffix(".lora_a"): (a, tensors[name.removesuffix("_a") + "_b"])
        for name, a in tensors.items()
        if name.endswith(".lora_a")
    }
    rank = next(iter(pairs.values()))[0].shape[0]
    return pairs, reader.fields["adapter.lora.alpha"].contents() / rank


def teach_plus_one():
    """Makes every sum of the training data, also solved ones in the context, one more.

    Half of the contexts contain the true sums, so that the answer depends on the adapter and not on the
    context.
    """
    arithmetic, distractor = tasks.arithmetic, documents.distractor

    def plus_one(rng, sign, test):
        asked = arithmetic(rng, sign, test)
        return replace(asked, answer=str(int(asked.answer) + 1)) if sign == "+" else asked

    def before(rng, size):
        tasks.arithmetic = rng.choice((arithmetic, plus_one))
        text = distractor(rng, size)
        tasks.arithmetic = plus_one
        return text

    tasks.arithmetic, documents.distractor = plus_one, before
