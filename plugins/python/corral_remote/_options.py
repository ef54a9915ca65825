"""Settings of a generation, and checks of arguments.

An argument that the host cannot read would end the session.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from corral_sdk.errors import Invalid

if TYPE_CHECKING:
    from ._handles import Constraint

_U8, _U32, _U64 = 2**8 - 1, 2**32 - 1, 2**64 - 1


def check_integer(name: str, value: Any, most: int = _U32) -> int:
    """Checks that a number fits an unsigned type."""
    if type(value) is not int or not 0 <= value <= most:
        raise Invalid(f"{name} is {value!r}; expected an integer from 0 to {most}")
    return value


def check_number(name: str, value: Any) -> float:
    """Checks that a number is finite."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Invalid(f"{name} is {value!r}; expected a finite number")
    return float(value)


def check_text(name: str, value: Any) -> str:
    """Checks that a value is a string."""
    if not isinstance(value, str):
        raise Invalid(f"{name} is {value!r}; expected a string")
    return value


class Options:
    """Settings of a generation. They are sent with it."""

    def __init__(self, max_tokens: int):
        self.max_tokens = check_integer("max_tokens", max_tokens)
        self.settings: list[Any] = []
        self.constraint: Constraint | None = None

    def seed(self, seed: int) -> None:
        self.settings.append({"seed": check_integer("seed", seed, _U64)})

    def stop(self, text: str) -> None:
        self.settings.append({"stop": check_text("stop", text)})

    def ignore_eos(self) -> None:
        self.settings.append("ignore-eos")

    def temperature(self, value: float) -> None:
        self.settings.append({"temperature": check_number("temperature", value)})

    def top_k(self, count: int) -> None:
        self.settings.append({"top-k": check_integer("top_k", count)})

    def top_p(self, mass: float) -> None:
        self.settings.append({"top-p": check_number("top_p", mass)})

    def min_p(self, ratio: float) -> None:
        self.settings.append({"min-p": check_number("min_p", ratio)})

    def dry(self, settings: dict[str, Any]) -> None:
        self.settings.append({"dry": settings})

    def penalties(self, settings: dict[str, Any]) -> None:
        self.settings.append({"penalties": settings})

    def logit_bias(self, biases: list[tuple[int, float]]) -> None:
        # Null stands for minus infinity.
        values = [
            (
                check_integer("a biased token", token),
                None if bias == -math.inf else check_number("a bias", bias),
            )
            for token, bias in biases
        ]
        self.settings.append({"logit-bias": values})

    def logprobs(self, top: int) -> None:
        self.settings.append({"logprobs": check_integer("logprobs", top, _U8)})

    def adapter(self, name: str) -> None:
        self.settings.append({"adapter": check_text("adapter", name)})

    def constrain(self, constraint: Constraint) -> None:
        constraint.check()
        self.constraint = constraint


def penalties(last_n: int, repeat: float, frequency: float, presence: float) -> dict[str, Any]:
    """The record `penalties`."""
    return {
        "last_n": check_integer("last_n", last_n),
        "repeat": check_number("repeat", repeat),
        "frequency": check_number("frequency", frequency),
        "presence": check_number("presence", presence),
    }


def dry(multiplier: float, base: float, allowed_length: int, last_n: int, breakers: list[str]) -> dict[str, Any]:
    """The record `dry`."""
    return {
        "multiplier": check_number("multiplier", multiplier),
        "base": check_number("base", base),
        "allowed_length": check_integer("allowed_length", allowed_length),
        "last_n": check_integer("last_n", last_n),
        "breakers": [check_text("a breaker", breaker) for breaker in breakers],
    }
