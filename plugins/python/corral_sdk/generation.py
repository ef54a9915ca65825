"""Generations in progress."""

from __future__ import annotations

from typing import Any

from ._host import host
from .errors import converted, from_host

# Chunks of one read. A chunk holds all tokens that are ready, so one suffices.
_CHUNKS = 1


class Generation:
    """A generation. Iterate over its chunks, each with `text` and `tokens`, or await `text()`. Afterwards
    `outcome()` tells why and with how many tokens it ended. Dropping it cancels it."""

    def __init__(self, chunks: Any, outcome: Any):
        self._chunks, self._future = chunks, outcome
        self._outcome: Any = None

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Any:
        if self._chunks is None:
            raise StopAsyncIteration
        with converted():
            read = await self._chunks.read(_CHUNKS)
        if not read:
            # The stream has ended: its reader is closed now, not when it is collected.
            self._close()
            raise StopAsyncIteration
        return read[0]

    async def rest(self) -> Any:
        """Waits for the end, and returns the remaining output as one chunk. Raises the generation's error."""
        chunks, self._chunks = self._chunks, None
        with converted():
            chunk = await host().waiting.collect(chunks)
        await self.outcome()
        return chunk

    async def text(self) -> str:
        """Waits for the end, and returns the remaining text. Raises the generation's error."""
        return (await self.rest()).text

    async def outcome(self) -> Any:
        """Waits for the end: `finish`, `prompt_tokens`, `cached_tokens`, `generated_tokens`, … Raises the
        generation's error. Call it after the chunks: the stream's end does not tell whether it succeeded."""
        if self._outcome is None:
            with converted():
                self._outcome = await self._future.read()
        if type(self._outcome).__name__ == "Err":
            raise from_host(self._outcome.value)
        return self._outcome.value

    def cancel(self) -> None:
        """Ends the generation now."""
        self._close()

    def take_chunks(self) -> Any:
        """The stream of chunks, for the host to frame. The caller reads `outcome` afterwards."""
        chunks, self._chunks = self._chunks, None
        return chunks

    def _close(self) -> None:
        if self._chunks is not None:
            self._chunks.__exit__(None, None, None)
            self._chunks = None
