"""Write a checkpoint as GGUF: `python export.py checkpoint.pkl tiny.gguf`.

Architecture "qwen3". Matrices are stored as F16, gains as F32; there is no output matrix because
the embedding serves as one.
"""

import pickle
import sys
from pathlib import Path

import gguf
import numpy as np

from model import Config
from tokenizer import END_OF_TEXT, TURN_END, Tokenizer


def write_gguf(path, parameters, config, name="Corral Tiny"):
    """Write `parameters` with tokenizer and chat template to `path`."""
    tokenizer = Tokenizer.default()
    assert len(tokenizer) == config.vocab
    w = gguf.GGUFWriter(str(path), "qwen3")
    w.add_name(name)
    w.add_description("Sums, reversed words, repeats, JSON and calculator calls; a model to test hosts with")
    w.add_license("Apache-2.0")
    w.add_languages(["en"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    w.add_vocab_size(config.vocab)
    w.add_context_length(config.context)
    w.add_block_count(config.layers)
    w.add_embedding_length(config.width)
    w.add_feed_forward_length(config.feed_forward)
    w.add_head_count(config.heads)
    w.add_head_count_kv(config.kv_heads)
    w.add_key_length(config.head_size)
    w.add_value_length(config.head_size)
    w.add_rope_dimension_count(config.head_size)
    w.add_rope_freq_base(config.rope_base)
    w.add_layer_norm_rms_eps(config.norm_eps)

    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokenizer.tokens)
    w.add_token_types(tokenizer.types)
    w.add_token_merges(tokenizer.merges)
    w.add_bos_token_id(tokenizer.id_of[END_OF_TEXT])
    w.add_eos_token_id(tokenizer.id_of[TURN_END])
    w.add_eot_token_id(tokenizer.id_of[TURN_END])
    w.add_pad_token_id(tokenizer.id_of[END_OF_TEXT])
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.add_chat_template((Path(__file__).parent / "chat_template.jinja").read_text())

    for tensor, value in parameters.items():
        w.add_tensor(tensor, np.ascontiguousarray(value, np.float32 if "norm" in tensor else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python export.py CHECKPOINT.pkl OUTPUT.gguf")
    saved = pickle.loads(Path(sys.argv[1]).read_bytes())
    write_gguf(sys.argv[2], saved["parameters"], Config())
