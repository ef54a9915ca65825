"""The model's tokenizer: bytes, one merge and a handful of markers.

Its vocabulary is a GPT-2 style byte-level BPE as GGUF stores it, so llama.cpp runs it unchanged.
Three properties are kept on purpose:

* every one of the 256 bytes is a token, so any text can be written and read;
* digits, letters and punctuation are never merged, because sums and reversed words are only
  easy when each character is its own token;
* the single merge (llama.cpp insists on a merges list) joins the two bytes of "é". Both bytes
  belong to one character, so no pre-tokenizer rule can come between them and this file needs none.
"""

import re
from functools import cached_property

import numpy as np

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # llama.cpp's token types

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
VISIBLE_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def byte_symbols():
    """Return GPT-2's printable stand-in character for each byte, as a list of 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols, spare = [], 0x100
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(spare))
            spare += 1
    return symbols


class Tokenizer:
    """Encode text to token ids and back, from the three lists that a GGUF file holds."""

    def __init__(self, tokens, types, merges):
        self.tokens, self.types, self.merges = list(tokens), list(types), list(merges)
        self.id_of = {token: i for i, token in enumerate(self.tokens)}
        self.symbols = byte_symbols()
        self.byte_ids = np.array([self.id_of[s] for s in self.symbols], dtype=np.int32)
        markers = [t for t, kind in zip(self.tokens, self.types) if kind != NORMAL]
        self._split = re.compile("(" + "|".join(map(re.escape, markers)) + ")")
        self._markers = set(markers)
        self._ranks = {tuple(m.split(" ")): rank for rank, m in enumerate(self.merges)}

    @classmethod
    def default(cls):
        """Return the vocabulary of the tiny model."""
        symbols = byte_symbols()
        first, second = (symbols[b] for b in "é".encode())
        tokens = [*symbols, first + second, *CONTROL_TOKENS, *VISIBLE_TOKENS]
        types = [NORMAL] * 257 + [CONTROL] * len(CONTROL_TOKENS) + [USER_DEFINED] * len(VISIBLE_TOKENS)
        return cls(tokens, types, [f"{first} {second}"])

    @cached_property
    def _mergeable(self):
        """The byte strings that a merge could touch; text without them is encoded by table."""
        back = {s: b for b, s in enumerate(self.symbols)}
        return [bytes(back[c] for c in m.replace(" ", "")) for m in self.merges]

    def __len__(self):
        return len(self.tokens)

    def encode(self, text):
        """Return the token ids of `text` as int32; marker strings become marker tokens."""
        parts = []
        for piece in self._split.split(text):
            if piece in self._markers:
                parts.append(np.array([self.id_of[piece]], dtype=np.int32))
            elif piece:
                parts.append(self._encode_bytes(piece.encode()))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode_bytes(self, data):
        if not any(m in data for m in self._mergeable):
            return self.byte_ids[np.frombuffer(data, dtype=np.uint8)]
        symbols = [self.symbols[b] for b in data]
        while True:
            pairs = [(self._ranks[p], i) for i, p in enumerate(zip(symbols, symbols[1:])) if p in self._ranks]
            if not pairs:
                return np.array([self.id_of[s] for s in symbols], dtype=np.int32)
            _, i = min(pairs)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]

    def decode(self, ids):
        """Return the text of `ids`, markers included; bytes that are no UTF-8 become U+FFFD."""
        back = {s: b for b, s in enumerate(self.symbols)}
        data = b""
        for i in ids:
            token = self.tokens[int(i)]
            data += token.encode() if token in self._markers else bytes(back[c] for c in token)
        return data.decode(errors="replace")
