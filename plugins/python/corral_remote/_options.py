"""Settings of a generation. `corral_sdk` has checked them: one that the host cannot read would end the session."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._handles import Constraint


class Options:
    """Settings of a generation. They are sent with it."""

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens
        self.settings: list[Any] = []
        self.constraint: Constraint | None = None

    def seed(self, seed: int) -> None:
        self.settings.append({"seed": seed})

    def stop(self, text: str) -> None:
        self.settings.append({"stop": text})

    def ignore_eos(self) -> None:
        self.settings.append("ignore-eos")

    def temperature(self, value: float) -> None:
        self.settings.append({"temperature": value})

    def top_k(self, count: int) -> None:
        self.settings.append({"top-k": count})

    def top_p(self, mass: float) -> None:
        self.settings.append({"top-p": mass})

    def min_p(self, ratio: float) -> None:
        self.settings.append({"min-p": ratio})

    def dry(self, settings: dict[str, Any]) -> None:
        self.settings.append({"dry": settings})

    def penalties(self, settings: dict[str, Any]) -> None:
        self.settings.append({"penalties": settings})

    def logit_bias(self, biases: list[tuple[int, float]]) -> None:
        # Null stands for minus infinity.
        values = [(token, None if bias == -math.inf else bias) for token, bias in biases]
        self.settings.append({"logit-bias": values})

    def logprobs(self, top: int) -> None:
        self.settings.append({"logprobs": top})

    def adapter(self, name: str) -> None:
        self.settings.append({"adapter": name})

    def constrain(self, constraint: Constraint) -> None:
        constraint.check()
        self.constraint = constraint


def penalties(last_n: int, repeat: float, frequency: float, presence: float) -> dict[str, Any]:
    """The record `penalties`."""
    return {"last_n": last_n, "repeat": repeat, "frequency": frequency, "presence": presence}


def dry(multiplier: float, base: float, allowed_length: int, last_n: int, breakers: list[str]) -> dict[str, Any]:
    """The record `dry`."""
    return {
        "multiplier": multiplier,
        "base": base,
        "allowed_length": allowed_length,
        "last_n": last_n,
        "breakers": breakers,
    }
