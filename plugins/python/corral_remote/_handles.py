"""What a program holds of the host: models, sequences, constraints and matchers."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from corral_sdk.errors import ContextFull, Invalid

from . import types
from ._session import Handle

if TYPE_CHECKING:
    from ._generation import Run


class Model(Handle):
    """An opened model."""

    details: types.ModelInfo

    def info(self) -> types.ModelInfo:
        return self.details

    def check_tokens(self, tokens: list[int]) -> list[int]:
        """Checks that the vocabulary has these tokens."""
        for token in tokens:
            if type(token) is not int or not 0 <= token < self.details.vocabulary:
                last = self.details.vocabulary - 1
                raise Invalid(f"token {token!r} is not in the vocabulary, which has the tokens 0 to {last}")
        return list(tokens)

    def check_can_fork(self) -> None:
        """Checks that the model's state can be forked."""
        if not self.details.can_fork:
            name = self.details.name
            why = "can be neither forked nor truncated; compute the tokens again in a new sequence"
            raise Invalid(f"the state of the model {name} {why}")

    def request_counts(self) -> types.RequestCounts:
        counts: types.RequestCounts = types.record(
            types.RequestCounts, self.session.ask_now("request-counts", self, model=self.number)
        )
        return counts

    def tokenize(self, text: str, special: bool) -> list[int]:
        tokens: list[int] = self.session.ask_now("tokenize", self, model=self.number, text=text, special=bool(special))
        return tokens

    def detokenize(self, tokens: list[int], special: bool) -> bytes:
        tokens = self.check_tokens(tokens)
        text = self.session.ask_now("detokenize", self, model=self.number, tokens=tokens, special=bool(special))
        return base64.b64decode(text)


class Sequence(Handle):
    """A sequence, and a copy of the tokens that the program has given or read."""

    def __init__(self, model: Model, held: list[int]):
        super().__init__(model.session, "sequence")
        self.model, self.held = model, held
        self.run: Run | None = None

    @staticmethod
    def create(model: Model) -> Sequence:
        sequence = Sequence(model, [])
        sequence.post("create-sequence", sequence=sequence.number, model=model.number)
        return sequence

    def check(self) -> None:
        if (run := self.run) is not None:
            if run.cancelled is None:
                raise Invalid("a generation runs on this sequence: wait for its end, or cancel it")
            self.session.wait(run.cancelled)
            self.run = None
        super().check()

    def append(self, tokens: list[int]) -> None:
        self.check()
        tokens = self.model.check_tokens(tokens)
        needed, limit = len(self.held) + len(tokens), self.model.details.context
        if needed > limit:
            raise ContextFull(needed, limit)
        self.post("append", sequence=self.number, tokens=tokens)
        self.held += tokens

    def truncate(self, length: int) -> None:
        self.check()
        self.model.check_can_fork()
        self.post("truncate", sequence=self.number, length=length)
        del self.held[length:]

    def fork(self) -> Sequence:
        self.check()
        self.model.check_can_fork()
        fork = Sequence(self.model, list(self.held))
        fork.post("fork-sequence", sequence=fork.number, **{"from": self.number})
        return fork

    def length(self) -> int:
        return len(self.held)

    def tokens(self, start: int) -> list[int]:
        return self.held[start:]


class Constraint(Handle):
    """A compiled grammar."""


class Matcher(Handle):
    """A matcher. The host keeps its state, so each call waits for a reply."""

    @staticmethod
    def start(constraint: Constraint) -> Matcher:
        constraint.check()
        matcher = Matcher(constraint.session, "matcher")
        matcher.post("start-matcher", matcher=matcher.number, constraint=constraint.number)
        return matcher

    def fork(self) -> Matcher:
        self.check()
        fork = Matcher(self.session, "matcher")
        fork.post("fork-matcher", matcher=fork.number, **{"from": self.number})
        return fork

    def allows(self, token: int) -> bool:
        return bool(self._ask("allows", token=token))

    def accept(self, token: int) -> None:
        self._ask("accept", token=token)

    def forced(self, max_tokens: int) -> list[int]:
        tokens: list[int] = self._ask("forced", max_tokens=max_tokens)
        return tokens

    def is_complete(self) -> bool:
        return bool(self._ask("is-complete"))

    def _ask(self, call: str, **arguments: Any) -> Any:
        return self.session.ask_now(call, self, matcher=self.number, **arguments)
