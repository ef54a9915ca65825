"""Generations: what has arrived of them, and their streams."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from corral_sdk.errors import Error, Invalid

from . import types
from ._handles import Sequence
from ._options import Options
from ._session import Handle, Session, new_future


class Run:
    """A generation on the host: what has arrived of it. A generation's length bounds that."""

    def __init__(self, session: Session, about: list[Handle]):
        self.session, self.number = session, next(session.numbers)
        # What it was made of, until it has started: an error of these is the generation's.
        self.about = about
        self.chunks: deque[types.Chunk] = deque()
        self.has_started = False
        self.outcome: types.Outcome | Error | None = None
        self.cancelled: Any = None
        # Reentrant: see `Session`.
        self._lock = threading.RLock()
        self._changed = new_future()

    def chunk(self, value: dict[str, Any]) -> None:
        """Takes a chunk, on the session's thread. The first is empty."""
        if self.outcome is not None:
            return
        if not self.has_started:
            error = self._late_error()
            if error is not None:
                self._end(error)
                self.cancel(None)
            self.has_started = error is None
            return
        with self._lock:
            self.chunks.append(types.chunk(value))
            self._wake()

    def replied(self, value: Any, error: Error | None) -> None:
        """Takes the outcome, on the session's thread."""
        if self.outcome is None:
            late = self._late_error()
            self._end(late or error or types.outcome(value))

    def _late_error(self) -> Error | None:
        about, self.about = self.about, []
        return next((one.error for one in about if one.error is not None), None)

    def _end(self, outcome: types.Outcome | Error) -> None:
        with self._lock:
            self.outcome = outcome
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, new_future()
        changed.set_result(None)

    async def next(self) -> types.Chunk | None:
        """The next chunk; None at the end."""
        while True:
            with self._lock:
                if self.chunks:
                    return self.chunks.popleft()
                if self.outcome is not None:
                    return None
                changed = self._changed
            await self.session.waited(changed)

    async def ended(self) -> types.Outcome | Error:
        """Waits for the outcome."""
        while True:
            with self._lock:
                if self.outcome is not None:
                    return self.outcome
                changed = self._changed
            await self.session.waited(changed)

    def cancel(self, sequence: Sequence | None) -> None:
        """Ends the generation, of whose sequence the program has read the tokens that it holds."""
        self.cancelled = new_future()
        entry = Cancelled(self, sequence)
        number, start = (0, 0) if sequence is None else (sequence.number, len(sequence.held))
        command = {"call": "cancel", "generation": self.number, "sequence": number, "start": start}
        try:
            self.session.submit([(command, entry)])
        except Error as error:
            entry.replied(None, error)


class Cancelled:
    """Takes the reply to `cancel`: the tokens that the host's sequence has and the program did not read."""

    def __init__(self, run: Run, sequence: Sequence | None):
        self.run, self.sequence = run, sequence

    def replied(self, value: Any, error: Error | None) -> None:
        if (sequence := self.sequence) is not None and value:
            if sequence.model.details.can_fork:
                command = {"call": "truncate", "sequence": sequence.number, "length": len(sequence.held)}
                with suppress(Error):
                    sequence.session.submit([(command, sequence)])
            else:
                sequence.held += value
        self.run.cancelled.set_result(None)


class Chunks:
    """The stream of a generation's chunks. Dropping it cancels the generation."""

    def __init__(self, run: Run, sequence: Sequence):
        self.run = run
        # Until the end: the generation's tokens belong to it as they are read.
        self.sequence: Sequence | None = sequence

    async def read(self, _: int = 1) -> list[types.Chunk]:
        if self.sequence is None:
            return []
        chunk = await self.run.next()
        if chunk is not None:
            if self.sequence is not None:
                self.sequence.held += chunk.tokens
            return [chunk]
        if self.sequence is not None:
            self.sequence.run = None
            self.sequence = None
        if not self.run.has_started and isinstance(self.run.outcome, Error):
            raise self.run.outcome
        return []

    def __exit__(self, *_: object) -> None:
        if self.sequence is not None:
            sequence, self.sequence = self.sequence, None
            self.run.cancel(sequence)

    def __del__(self) -> None:
        with suppress(Exception):
            self.__exit__()


class _Outcome:
    """The future of a generation's outcome."""

    def __init__(self, run: Run):
        self.run = run

    async def read(self) -> Any:
        outcome = await self.run.ended()
        if isinstance(outcome, Error):
            raise outcome
        return SimpleNamespace(value=outcome)


def generate(sequence: Sequence, options: Options) -> tuple[Chunks, _Outcome]:
    sequence.check()
    if not sequence.held:
        raise Invalid("the sequence is empty; append tokens before generating")
    if options.max_tokens == 0:
        raise Invalid("max_tokens is 0; expected at least 1")
    session, constraint = sequence.session, options.constraint
    made = Handle(session, "options")
    number = made.number
    run = Run(session, [sequence, made])
    commands: list[tuple[dict[str, Any], Any]] = [
        ({"call": "create-options", "options": number, "max_tokens": options.max_tokens}, made)
    ]
    commands += [({"call": "set", "options": number, "setting": setting}, made) for setting in options.settings]
    if constraint is not None:
        commands.append(({"call": "constrain", "options": number, "constraint": constraint.number}, made))
    generate = {"call": "generate", "generation": run.number, "sequence": sequence.number, "options": number}
    session.wait(session.submit([*commands, (generate, run)]))
    sequence.run = run
    return Chunks(run, sequence), _Outcome(run)


async def collect(chunks: Chunks) -> types.Chunk:
    tokens: list[int] = []
    texts: list[str] = []
    logprobs: list[types.TokenLogprobs] = []
    try:
        while read := await chunks.read():
            tokens += read[0].tokens
            texts.append(read[0].text)
            logprobs += read[0].logprobs
    finally:
        # A call that is given up cancels the generation now, not once its exception is collected.
        chunks.__exit__()
    return types.Chunk(tokens, "".join(texts), logprobs)
