"""Samplers: settings of the host's, and functions for plugins that choose tokens themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ._check import integer, number, string
from ._host import host


@dataclass(frozen=True)
class Penalties:
    """Penalizes tokens among the last `last_n` tokens."""

    last_n: int = 64
    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0


@dataclass(frozen=True)
class Dry:
    """Penalizes tokens that would extend a repetition."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = 1024
    breakers: list[str] = field(default_factory=lambda: ["\n", ":", '"', "*"])


# The temperature comes first, as in OpenAI's API: filters apply to the tempered distribution.
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "temperature": number,
    "top_k": integer,
    "top_p": number,
    "min_p": number,
    "seed": lambda value, name: integer(value, name, 2**64 - 1),
    "logprobs": lambda value, name: integer(value, name, 2**8 - 1),
    "adapter": string,
}


def options(max_tokens: int, **settings: Any) -> Any:
    """Creates the host's options from the arguments of `Sequence.generate`."""
    inference = host().inference
    made = inference.Options(integer(max_tokens, "max_tokens"))
    if (penalties := settings["penalties"]) is not None:
        made.penalties(
            inference.Penalties(
                integer(penalties.last_n, "last_n"),
                *(number(getattr(penalties, name), name) for name in ["repeat", "frequency", "presence"]),
            )
        )
    if (dry := settings["dry"]) is not None:
        made.dry(
            inference.Dry(
                *(number(getattr(dry, name), name) for name in ["multiplier", "base"]),
                *(integer(getattr(dry, name), name) for name in ["allowed_length", "last_n"]),
                [string(breaker, "a breaker") for breaker in dry.breakers],
            )
        )
    if settings["logit_bias"]:
        biases = settings["logit_bias"].items()
        made.logit_bias([(integer(token, "a biased token"), _bias(bias)) for token, bias in biases])
    for name, check in _CHECKS.items():
        if settings[name] is not None:
            getattr(made, name)(check(settings[name], name))
    for text in settings["stop"]:
        made.stop(string(text, "stop"))
    if settings["ignore_eos"]:
        made.ignore_eos()
    if settings["constraint"] is not None:
        made.constrain(settings["constraint"].handle)
    return made


def _bias(value: Any) -> float:
    # Minus infinity bans the token.
    return -math.inf if value == -math.inf else number(value, "a bias")


def greedy(distribution: Any) -> int:
    """The most likely token of a distribution of `Sequence.next`."""
    return distribution.candidates[0].token


def log_softmax(logits: list[float]) -> list[float]:
    """Log probabilities: the logits minus the logarithm of the sum of their exponentials."""
    highest = max(logits)
    total = highest + math.log(sum(math.exp(logit - highest) for logit in logits))
    return [logit - total for logit in logits]


def softmax(logits: list[float]) -> list[float]:
    """Probabilities of logits."""
    return [math.exp(value) for value in log_softmax(logits)]


def top_p(probabilities: list[float], mass: float) -> list[float]:
    """Keeps the smallest set of most likely entries whose probabilities sum to `mass`; the others become 0.
    The result sums to 1."""
    order = sorted(range(len(probabilities)), key=lambda index: -probabilities[index])
    kept, total = [0.0] * len(probabilities), 0.0
    for index in order:
        kept[index] = probabilities[index]
        total += probabilities[index]
        if total >= mass:
            break
    return [value / total for value in kept]


def choose(distribution: Any, generator: random.Random, temperature: float = 1.0) -> int:
    """Draws a token from the candidates of a distribution."""
    candidates = distribution.candidates
    if temperature <= 0:
        return greedy(distribution)
    weights = softmax([candidate.logit / temperature for candidate in candidates])
    return generator.choices([candidate.token for candidate in candidates], weights)[0]
