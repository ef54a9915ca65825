"""Samplers: settings of the host's, and functions for plugins that choose tokens themselves."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

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


def options(max_tokens: int, **settings: Any) -> Any:
    """Creates the host's options from the arguments of `Sequence.generate`."""
    inference = host().inference
    made = inference.Options(max_tokens)
    if (penalties := settings["penalties"]) is not None:
        made.penalties(
            inference.Penalties(penalties.last_n, penalties.repeat, penalties.frequency, penalties.presence)
        )
    if (dry := settings["dry"]) is not None:
        made.dry(inference.Dry(dry.multiplier, dry.base, dry.allowed_length, dry.last_n, dry.breakers))
    if settings["logit_bias"]:
        made.logit_bias(list(settings["logit_bias"].items()))
    # The temperature comes first, as in OpenAI's API: filters apply to the tempered distribution.
    for name in ["temperature", "top_k", "top_p", "min_p", "seed", "logprobs", "adapter"]:
        if settings[name] is not None:
            getattr(made, name)(settings[name])
    for text in settings["stop"]:
        made.stop(text)
    if settings["ignore_eos"]:
        made.ignore_eos()
    if settings["constraint"] is not None:
        made.constrain(settings["constraint"].handle)
    return made


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
