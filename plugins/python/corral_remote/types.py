"""What the host's functions return. The fields are described in `wit/corral-inference.wit`."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from corral_sdk.errors import Failed


@dataclass(frozen=True)
class ModelInfo:
    """A model's metadata: `Model.info`."""

    name: str
    vocabulary: int
    context: int
    embedding_length: int
    bos: int | None
    eos: int | None
    end_of_generation: list[int]
    chat_template: str | None
    can_fork: bool
    adapters: list[str]


@dataclass(frozen=True)
class RequestCounts:
    """How many requests of a model run and wait, and how many may run at a time: `Model.request_counts`."""

    running: int
    waiting: int
    max_running: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and its logit."""

    token: int
    logit: float


@dataclass(frozen=True)
class Statistics:
    """Statistics of a whole distribution, in nats."""

    log_normalizer: float
    entropy: float


@dataclass(frozen=True)
class Distribution:
    """The distribution of the next token: `Sequence.next`."""

    candidates: list[Candidate]
    logits: list[float]
    statistics: Statistics | None
    position: int


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities at one position; `top` has tokens and their log probabilities."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Chunk:
    """A part of a generation's output."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Finish(Enum):
    """Why a generation ended."""

    END = "end"
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class Outcome:
    """The result of a finished generation. Times are in nanoseconds."""

    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_time: int
    prefill_time: int
    decode_time: int


@dataclass(frozen=True)
class Budget:
    """The session's remaining tokens, or None without a quota, and time in nanoseconds."""

    tokens: int | None
    time: int


def record(kind: Any, value: dict[str, Any]) -> Any:
    """A record of a reply. Later hosts may send more members."""
    try:
        return kind(**{name: value[name] for name in kind.__dataclass_fields__})
    except KeyError as error:
        raise Failed(f"the host's {kind.__name__} lacks {error}; its version may not fit") from None


def floats(text: str) -> list[float]:
    """Numbers of four bytes, little-endian, in base64."""
    numbers = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def distribution(value: dict[str, Any]) -> Distribution:
    """The value of `next`."""
    logits, statistics = value.get("logits"), value.get("statistics")
    return Distribution(
        [Candidate(token, _logit(logit)) for token, logit in value.get("candidates", ())],
        [] if logits is None else floats(logits),
        None if statistics is None else record(Statistics, statistics),
        value["position"],
    )


def chunk(value: dict[str, Any]) -> Chunk:
    """A chunk of a generation."""
    logprobs = [
        TokenLogprobs(_logit(one["logprob"]), [(token, _logit(other)) for token, other in one["top"]])
        for one in value.get("logprobs", ())
    ]
    return Chunk(value["tokens"], value["text"], logprobs)


def outcome(value: dict[str, Any]) -> Outcome:
    """The value of a generation."""
    result: Outcome = record(Outcome, {**value, "finish": Finish(value["finish"])})
    return result


def _logit(number: float | None) -> float:
    # JSON has no infinity.
    return -math.inf if number is None else number
