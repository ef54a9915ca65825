"""Sequences: tokens, and the model's state for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._check import integer, string, tokens as token_list
from ._host import host
from .errors import converted, from_host
from .generation import Generation
from .sampling import Dry, Penalties, options

if TYPE_CHECKING:
    from .grammar import Constraint, Matcher
    from .model import Model


class Sequence:
    """A list of tokens. Forks share the model's state: nothing is copied or computed again."""

    def __init__(self, model: Model, handle: Any):
        self.model, self.handle = model, handle

    def __len__(self) -> int:
        return self.handle.length()

    def tokens(self, start: int = 0) -> list[int]:
        """The tokens from a position on."""
        return self.handle.tokens(integer(start, "start"))

    def append(self, text: str | list[int], special: bool = False) -> Sequence:
        """Appends text or tokens, and returns the sequence."""
        tokens = self.model.tokenize(text, special) if isinstance(text, str) else token_list(text, "text")
        if tokens:
            with converted():
                self.handle.append(tokens)
        return self

    async def append_image(self, file: bytes) -> int:
        """Appends an image or audio, the bytes of a PNG, JPEG, GIF, WebP or WAV file, for a model with a projector.
        Append text before generating. Returns the number of positions that it takes."""
        with converted():
            return await host().waiting.append_image(self.handle, file)

    def truncate(self, length: int) -> None:
        """Shortens the sequence to its first tokens."""
        with converted():
            self.handle.truncate(integer(length, "length"))

    def fork(self) -> Sequence:
        """A sequence with the same tokens and state."""
        with converted():
            return Sequence(self.model, self.handle.fork())

    def generate(
        self,
        max_tokens: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        penalties: Penalties | None = None,
        dry: Dry | None = None,
        logit_bias: dict[int, float] | None = None,
        seed: int | None = None,
        stop: str | list[str] | tuple[str, ...] = (),
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Generates at most `max_tokens` tokens. Without samplers, always the most likely token."""
        with converted():
            made = options(
                max_tokens,
                penalties=penalties,
                dry=dry,
                logit_bias=logit_bias,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=seed,
                stop=[stop] if isinstance(stop, str) else list(stop),
                ignore_eos=ignore_eos,
                constraint=constraint,
                logprobs=logprobs,
                adapter=adapter,
            )
            return Generation(*host().waiting.generate(self.handle, made))

    async def next(
        self,
        top: int | None = 20,
        *,
        only: list[int] | None = None,
        statistics: bool = False,
        matcher: Matcher | None = None,
    ) -> Any:
        """The distribution of the next token: its `candidates`, each with `token` and `logit`, the most
        likely first. `top` candidates, or those of `only`, or with `top=None` all `logits`."""
        request = _request(top, only, statistics, matcher)
        with converted():
            return await host().waiting.next(self.handle, request)

    async def save(self, name: str) -> None:
        """Saves the sequence under a name, beyond this request."""
        with converted():
            await host().waiting.save_snapshot(self.handle, string(name, "name"))


async def next_many(
    sequences: list[Sequence],
    top: int | None = 20,
    *,
    only: list[int] | None = None,
    statistics: bool = False,
) -> list[Any]:
    """`Sequence.next` for several sequences, which share a step. The first error is raised."""
    request = _request(top, only, statistics, None)
    with converted():
        results = await host().waiting.next_many([(one.handle, request) for one in sequences])
    for result in results:
        if type(result).__name__ == "Err":
            raise from_host(result.value)
    return [result.value for result in results]


def _request(top: int | None, only: list[int] | None, statistics: bool, matcher: Matcher | None) -> Any:
    inference = host().inference
    if only is not None:
        part = inference.DistributionPart_Only(token_list(only, "only"))
    elif top is not None:
        part = inference.DistributionPart_Top(integer(top, "top"))
    else:
        part = inference.DistributionPart_Logits()
    return inference.NextTokenRequest(part, statistics, matcher and matcher.handle)
