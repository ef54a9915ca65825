"""Models: metadata, tokenization and embeddings."""

from __future__ import annotations

import json
from typing import Any

from ._check import string, tokens as token_list
from ._host import host
from .errors import converted
from .grammar import Constraint
from .sequence import Sequence

SOURCE = "CORRAL_SOURCE_"
"""Begins the names of entries with which `corral watch` passes modules to a developing server."""


def available_models() -> list[str]:
    """Names of the models that this deployment may open. The first is the default."""
    return host().models.available()


def configuration() -> dict[str, str]:
    """The deployment's `[configuration]`."""
    entries = host().environment.get_environment()
    return {name: value for name, value in entries if not name.startswith(SOURCE)}


def remaining_budget() -> Any:
    """The request's remaining `tokens`, or None without a quota, and `time` in nanoseconds."""
    return host().budget.remaining()


class Model:
    """An opened model. `info` has its metadata: `name`, `vocabulary`, `context`, `chat_template`, …"""

    def __init__(self, handle: Any):
        self.handle = handle
        self.info = handle.info()

    @staticmethod
    async def open(name: str | None = None) -> Model:
        """Opens a model by name; without a name, the default model."""
        with converted():
            return Model(await host().waiting.open_model(None if name is None else string(name, "name")))

    def request_counts(self) -> Any:
        """How many requests of all deployments are `running` and `waiting`, and how many can run: `max_running`."""
        with converted():
            return self.handle.request_counts()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Converts text to tokens. With `special`, control tokens in the text are read as such."""
        with converted():
            return self.handle.tokenize(string(text, "text"), special)

    def detokenize(self, tokens: list[int], special: bool = False) -> str:
        """Converts tokens to text; incomplete characters become U+FFFD."""
        with converted():
            return bytes(self.handle.detokenize(token_list(tokens, "tokens"), special)).decode(errors="replace")

    def sequence(self, prompt: str | list[int] = "", special: bool = False) -> Sequence:
        """Creates a sequence of a prompt. With `special`, control tokens in its text are read as such."""
        with converted():
            sequence = Sequence(self, host().inference.Sequence.create(self.handle))
        if isinstance(prompt, str) and prompt and self.info.bos is not None:
            sequence.append([self.info.bos])
        sequence.append(prompt, special)
        return sequence

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Computes one vector of length 1 for each text."""
        first = [] if self.info.bos is None else [self.info.bos]
        inputs = [first + self.tokenize(text) for text in texts]
        with converted():
            return await host().waiting.embed(self.handle, inputs, None, None)

    async def restore(self, name: str) -> Sequence:
        """Loads the sequence that `Sequence.save` saved under this name."""
        with converted():
            return Sequence(self, await host().waiting.restore_snapshot(self.handle, string(name, "name")))

    async def delete_snapshot(self, name: str) -> None:
        """Deletes a snapshot."""
        with converted():
            await host().waiting.delete_snapshot(self.handle, string(name, "name"))

    async def json_schema(self, schema: dict[str, Any] | bool) -> Constraint:
        """Compiles a JSON schema."""
        return await self._compile("JsonSchema", json.dumps(schema))

    async def json_object(self) -> Constraint:
        """Compiles a grammar of any JSON object."""
        return await self._compile("JsonObject")

    async def regex(self, pattern: str) -> Constraint:
        """Compiles a regular expression, which the whole text matches."""
        return await self._compile("Regex", pattern)

    async def lark(self, grammar: str) -> Constraint:
        """Compiles a grammar in llguidance's variant of Lark."""
        return await self._compile("Lark", grammar)

    async def gbnf(self, grammar: str) -> Constraint:
        """Compiles a grammar in llama.cpp's GBNF."""
        return await self._compile("Gbnf", grammar)

    async def _compile(self, kind: str, *text: str) -> Constraint:
        grammar = getattr(host().constraints, f"Grammar_{kind}")(*(string(one, "grammar") for one in text))
        with converted():
            return Constraint(await host().waiting.compile_constraint(self.handle, grammar))
