"""A scripted host: tests a plugin's logic under pytest, without WebAssembly or a model.

    script = Script({"12+7=": "19"})
    response = script.call(app.handle, Request("POST", "/", body={"prompt": "12+7="}))
    assert response.json() == {"text": "19"}

A script maps prompts to answers, and to errors that the model's calls raise. A prompt that it does not cover is
an error, so no test passes by accident. There is one token for each byte, and the tokens of `SPECIAL`.
`Script.generations` records settings, `Script.computed` counts the tokens that a host would compute.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from . import _host
from .errors import Cancelled, Error, NotFound
from .http import EventWriter, Request, Response, answer, write_events

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 256


@dataclass
class Generate:
    """A call of `Sequence.generate`: the text before it, and its settings in the order of the calls."""

    prompt: str
    settings: list[tuple[Any, ...]]


@dataclass
class Answered:
    """A response that a test reads."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of server-sent events; JSON where it is JSON."""
        found = []
        for event in self.body.decode().split("\n\n"):
            data = "\n".join(line[6:] for line in event.split("\n") if line.startswith("data: "))
            if data:
                try:
                    found.append(json.loads(data))
                except ValueError:
                    found.append(data)
        return found


@dataclass
class Script:
    """Answers by prompt. Values are texts, or errors. `configuration` is the deployment's."""

    answers: dict[str, str | Error]
    chat_template: str | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    context: int = 4096
    generations: list[Generate] = field(default_factory=list)
    computed: int = 0
    snapshots: dict[str, list[int]] = field(default_factory=dict)
    _known: set[tuple[int, ...]] = field(default_factory=set)

    def run(self, work: Awaitable[Any]) -> Any:
        """Runs a coroutine with this script as its host."""

        async def main() -> Any:
            return await work

        before = _host.install(_modules(self))
        try:
            return asyncio.run(main())
        finally:
            _host.install(before)

    def call(
        self,
        function: Callable[[Request], Awaitable[Response]],
        request: Request,
        disconnect_after: int | None = None,
    ) -> Answered:
        """Sends a request to a handler and reads the response, as a client that disconnects after so many
        events."""
        return self.run(self._call(function, request, disconnect_after))

    async def _call(self, function: Any, request: Request, limit: int | None) -> Answered:
        response = await answer(function, request)
        body = bytearray(response.content)
        written = 0

        async def write(data: bytes) -> bool:
            nonlocal written
            written += 1
            if limit is not None and written > limit:
                return False
            body.extend(data)
            return True

        if response.write is not None:
            events = EventWriter(write)
            await write_events(response.write, events)
            if response.framed is not None:
                generation, _, end = response.framed
                await write_events(end or _outcome(generation), events)
        return Answered(response.status, dict(response.headers), bytes(body))

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, with special ones written out."""
        parts = [SPECIAL[token - 256].encode() if token >= 256 else bytes([token]) for token in tokens]
        return b"".join(parts).decode(errors="replace")

    def continuation(self, tokens: list[int]) -> list[int]:
        """The tokens that the scripted model generates after these."""
        text = self.text(tokens)
        for prompt, found in self.answers.items():
            if isinstance(found, Error):
                if text.endswith(prompt):
                    raise found
            elif (at := text.rfind(prompt)) >= 0 and found.startswith(text[at + len(prompt) :]):
                return [*found[len(text) - at - len(prompt) :].encode(), END]
        raise NotFound(f"the script has no answer to {text!r}; it has {list(self.answers)}")

    def compute(self, tokens: list[int]) -> int:
        """Counts the tokens after the longest prefix that was computed before. Returns the number of others."""
        cached = len(tokens) - 1
        while cached > 0 and tuple(tokens[:cached]) not in self._known:
            cached -= 1
        self.computed += len(tokens) - cached
        self._known.update(tuple(tokens[:length]) for length in range(cached + 1, len(tokens) + 1))
        return cached


def _outcome(generation: Any) -> Any:
    async def write(_: EventWriter) -> None:
        await generation.outcome()

    return write


class _Model:
    def __init__(self, script: Script, name: str):
        self.script, self.name = script, name

    def info(self) -> Any:
        return SimpleNamespace(
            name=self.name,
            vocabulary=256 + len(SPECIAL),
            context=self.script.context,
            embedding_length=4,
            bos=None,
            eos=END,
            end_of_generation=[END, END + 2],
            chat_template=self.script.chat_template,
            can_fork=True,
            adapters=[],
        )

    def request_counts(self) -> Any:
        return SimpleNamespace(running=0, waiting=0, max_running=1)

    def tokenize(self, text: str, special: bool) -> list[int]:
        tokens: list[int] = []
        while text:
            known = [name for name in SPECIAL if special and text.startswith(name)]
            part = known[0] if known else text[0]
            tokens += [256 + SPECIAL.index(part)] if known else part.encode()
            text = text[len(part) :]
        return tokens

    def detokenize(self, tokens: list[int], special: bool) -> bytes:
        return self.script.text([token for token in tokens if special or token < 256]).encode()


class _Sequence:
    def __init__(self, script: Script, held: list[int]):
        self.script, self.held = script, held

    def append(self, tokens: list[int]) -> None:
        self.held += tokens

    def truncate(self, length: int) -> None:
        del self.held[length:]

    def fork(self) -> _Sequence:
        return _Sequence(self.script, list(self.held))

    def length(self) -> int:
        return len(self.held)

    def tokens(self, start: int) -> list[int]:
        return self.held[start:]


class _Options:
    def __init__(self, max_tokens: int):
        self.settings: list[tuple[Any, ...]] = [("max_tokens", max_tokens)]

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.settings.append((name, *values))

    def values(self, name: str) -> list[Any]:
        return [one[1] for one in self.settings if one[0] == name]


class _Generation:
    """The stream of chunks and the future of the outcome of one generation."""

    def __init__(self, script: Script, sequence: _Sequence, options: _Options):
        prompt = list(sequence.held)
        script.generations.append(Generate(script.text(prompt), options.settings))
        self.sequence, self.finish = sequence, "LENGTH"
        self.error: Error | None = None
        self.cached = script.compute(prompt)
        self.prompt, self.left, self.generated = len(prompt), [], 0
        try:
            continuation = script.continuation(prompt)
        except Error as error:
            self.error, continuation = error, []
        for token in continuation[: options.values("max_tokens")[0]]:
            self.generated += 1
            self.left.append(token)
            text = script.text([one for one in self.left if one < 256])
            stops = [stop for stop in options.values("stop") if text.endswith(stop)]
            if token == END or stops:
                self.finish = "END" if token == END else "STOP"
                del self.left[-len(stops[0].encode()) if stops else -1 :]
                break
        script.computed += max(0, self.generated - 1)

    async def read(self, *count: int) -> Any:
        if not count:
            return self._outcome()
        if not self.left:
            return []
        return [self._chunk([self.left.pop(0)])]

    def __exit__(self, *_: Any) -> None:
        self.left = []

    def all(self) -> Any:
        chunk, self.left = self._chunk(self.left), []
        return chunk

    def _chunk(self, tokens: list[int]) -> Any:
        self.sequence.held += tokens
        return SimpleNamespace(tokens=tokens, text=self.sequence.script.text(tokens), logprobs=[])

    def _outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        outcome = SimpleNamespace(
            finish=SimpleNamespace(name=self.finish),
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
        )
        return SimpleNamespace(value=outcome)


def _modules(script: Script) -> Any:
    """The modules of `_host.host`."""

    async def open_model(name: str | None) -> Any:
        if name not in (None, "scripted"):
            raise NotFound(f"there is no model {name!r}; expected 'scripted'")
        return _Model(script, "scripted")

    async def collect(generation: _Generation) -> Any:
        return generation.all()

    async def next_token(sequence: _Sequence, request: Any) -> Any:
        script.compute(sequence.held)
        token = script.continuation(sequence.held)[0]
        others = [other for other in range(ord("a"), ord("a") + 8) if other != token]
        candidates = [SimpleNamespace(token=token, logit=5.0)]
        candidates += [SimpleNamespace(token=other, logit=0.0) for other in others]
        count = getattr(request.part, "value", len(candidates))
        if isinstance(count, list):
            candidates = [one for one in candidates if one.token in count]
        else:
            candidates = candidates[:count]
        return SimpleNamespace(candidates=candidates, logits=[], statistics=None, position=len(sequence.held))

    async def next_many(requests: list[tuple[_Sequence, Any]]) -> Any:
        return [SimpleNamespace(value=await next_token(*one)) for one in requests]

    async def embed(model: _Model, inputs: list[list[int]], *_: Any) -> Any:
        # Counts of letters: texts with the same letters have the same vector.
        counts = [[sum(token % 4 == part for token in one) for part in range(4)] for one in inputs]
        lengths = [sum(value * value for value in one) ** 0.5 or 1.0 for one in counts]
        return [[value / length for value in one] for one, length in zip(counts, lengths, strict=True)]

    async def append_image(sequence: _Sequence, file: bytes) -> int:
        tokens = list(f"[image of {len(file)} bytes]".encode())
        sequence.append(tokens)
        return len(tokens)

    async def save_snapshot(sequence: _Sequence, name: str) -> None:
        script.snapshots[name] = list(sequence.held)

    async def restore_snapshot(_: _Model, name: str) -> Any:
        if name not in script.snapshots:
            raise NotFound(f"there is no snapshot {name!r}")
        return _Sequence(script, list(script.snapshots[name]))

    async def delete_snapshot(_: _Model, name: str) -> None:
        script.snapshots.pop(name, None)

    def generate(sequence: _Sequence, options: _Options) -> Any:
        generation = _Generation(script, sequence, options)
        return generation, generation

    def grammar(*_: str) -> Any:
        return SimpleNamespace()

    async def compile_constraint(_: _Model, grammar: Any) -> Any:
        return grammar

    part = lambda *values: SimpleNamespace(value=values[0]) if values else SimpleNamespace()
    kinds = ["JsonSchema", "JsonObject", "Regex", "Lark", "Gbnf"]
    return SimpleNamespace(
        models=SimpleNamespace(available=lambda: ["scripted"]),
        constraints=SimpleNamespace(**{f"Grammar_{kind}": grammar for kind in kinds}),
        budget=SimpleNamespace(remaining=lambda: SimpleNamespace(tokens=None, time=10**12)),
        environment=SimpleNamespace(get_environment=lambda: list(script.configuration.items())),
        inference=SimpleNamespace(
            Sequence=SimpleNamespace(create=lambda _: _Sequence(script, [])),
            Options=_Options,
            Penalties=lambda *values: values,
            Dry=lambda *values: values,
            DistributionPart_Top=part,
            DistributionPart_Only=part,
            DistributionPart_Logits=part,
            NextTokenRequest=lambda *values: SimpleNamespace(part=values[0]),
        ),
        waiting=SimpleNamespace(
            append_image=append_image,
            open_model=open_model,
            embed=embed,
            compile_constraint=compile_constraint,
            generate=generate,
            collect=collect,
            next=next_token,
            next_many=next_many,
            save_snapshot=save_snapshot,
            restore_snapshot=restore_snapshot,
            delete_snapshot=delete_snapshot,
        ),
    )


__all__ = ["Answered", "Cancelled", "END", "Generate", "SPECIAL", "Script"]
