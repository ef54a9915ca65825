"""Constraints on generated text."""

from __future__ import annotations

from typing import Any

from ._check import integer
from ._host import host
from .errors import converted


class Constraint:
    """A compiled grammar; see `Model.json_schema` and its neighbors."""

    def __init__(self, handle: Any):
        self.handle = handle

    def matcher(self) -> Matcher:
        """A matcher at the start of the text, for `Sequence.next`."""
        with converted():
            return Matcher(host().constraints.Matcher.start(self.handle))


class Matcher:
    """Tracks which tokens a constraint allows next, for plugins that choose tokens themselves."""

    def __init__(self, handle: Any):
        self.handle = handle

    def fork(self) -> Matcher:
        """A copy in the same state."""
        with converted():
            return Matcher(self.handle.fork())

    def allows(self, token: int) -> bool:
        """Whether the token may follow."""
        with converted():
            return self.handle.allows(integer(token, "token"))

    def accept(self, token: int) -> None:
        """Advances by one token."""
        with converted():
            self.handle.accept(integer(token, "token"))

    def forced(self, max_tokens: int) -> list[int]:
        """Advances over the tokens that the grammar forces next, and returns them."""
        with converted():
            return self.handle.forced(integer(max_tokens, "max_tokens"))

    def is_complete(self) -> bool:
        """Whether only an end-of-generation token can follow."""
        return self.handle.is_complete()
