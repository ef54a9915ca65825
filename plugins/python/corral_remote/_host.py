"""The host's interfaces over a session, as `corral_sdk` calls them."""

from __future__ import annotations

import base64
import os
from types import SimpleNamespace
from typing import Any

from corral_sdk.errors import Invalid

from . import types
from ._generation import collect, generate
from ._handles import Constraint, Matcher, Model, Sequence
from ._options import Options, dry, penalties
from ._session import Handle, current
from .errors import from_reply


def _request(part: Any, statistics: bool, matcher: Matcher | None) -> tuple[dict[str, Any], list[Handle]]:
    request: dict[str, Any] = {"part": part, "statistics": bool(statistics)}
    if matcher is None:
        return request, []
    return {**request, "matcher": matcher.number}, [matcher]


async def _next(sequence: Sequence, request: tuple[dict[str, Any], list[Handle]]) -> types.Distribution:
    details, about = request
    value = await sequence.session.ask("next", sequence, *about, sequence=sequence.number, request=details)
    return types.distribution(value)


async def _next_many(requests: list[tuple[Sequence, tuple[dict[str, Any], list[Handle]]]]) -> list[Any]:
    if not requests:
        return []
    session = requests[0][0].session
    about = [handle for sequence, (_, others) in requests for handle in (sequence, *others)]
    if any(handle.session is not session for handle in about):
        raise Invalid("the sequences are of several sessions; call next_many for each")
    sent = [(sequence.number, details) for sequence, (details, _) in requests]
    results = await session.ask("next-many", *about, requests=sent)
    for result in results:
        if "error" in result:
            raise from_reply(result["error"])
    return [SimpleNamespace(value=types.distribution(result["ok"])) for result in results]


async def _open_model(name: str | None) -> Model:
    session = current()
    model = Model(session, "model")
    info = await session.ask("open-model", model, model=model.number, name=name)
    model.details = types.record(types.ModelInfo, info)
    return model


async def _embed(model: Model, inputs: list[list[int]], pooling: str | None, normalize: bool | None) -> list[list[float]]:
    inputs = [model.check_tokens(tokens) for tokens in inputs]
    arguments = {"inputs": inputs, "pooling": pooling, "normalize": normalize}
    vectors = await model.session.ask("embed", model, model=model.number, **arguments)
    return [types.floats(vector) for vector in vectors]


async def _compile_constraint(model: Model, grammar: Any) -> Constraint:
    constraint = Constraint(model.session, "constraint")
    arguments = {"constraint": constraint.number, "model": model.number, "grammar": grammar}
    await model.session.ask("compile-constraint", model, constraint, **arguments)
    return constraint


async def _append_image(sequence: Sequence, file: bytes) -> int:
    encoded = base64.b64encode(file).decode()
    tokens = await sequence.session.ask("append-image", sequence, sequence=sequence.number, file=encoded)
    sequence.held += tokens
    return len(tokens)


async def _save_snapshot(sequence: Sequence, name: str) -> None:
    await sequence.session.ask("save-snapshot", sequence, sequence=sequence.number, name=name)


async def _restore_snapshot(model: Model, name: str) -> Sequence:
    sequence = Sequence(model, [])
    arguments = {"sequence": sequence.number, "model": model.number, "name": name}
    sequence.held += await model.session.ask("restore-snapshot", model, **arguments)
    return sequence


async def _delete_snapshot(model: Model, name: str) -> None:
    await model.session.ask("delete-snapshot", model, model=model.number, name=name)


def _remaining() -> types.Budget:
    budget: types.Budget = types.record(types.Budget, current().ask_now("remaining"))
    return budget


REMOTE = SimpleNamespace(
    models=SimpleNamespace(available=lambda: current().ask_now("available")),
    budget=SimpleNamespace(remaining=_remaining),
    environment=SimpleNamespace(get_environment=lambda: list(os.environ.items())),
    constraints=SimpleNamespace(
        Matcher=Matcher,
        Grammar_JsonSchema=lambda text: {"json-schema": text},
        Grammar_JsonObject=lambda: "json-object",
        Grammar_Regex=lambda text: {"regex": text},
        Grammar_Lark=lambda text: {"lark": text},
        Grammar_Gbnf=lambda text: {"gbnf": text},
    ),
    inference=SimpleNamespace(
        Sequence=Sequence,
        Options=Options,
        Penalties=penalties,
        Dry=dry,
        DistributionPart_Top=lambda count: {"top": count},
        DistributionPart_Only=lambda tokens: {"only": tokens},
        DistributionPart_Logits=lambda: "logits",
        NextTokenRequest=_request,
    ),
    waiting=SimpleNamespace(
        open_model=_open_model,
        embed=_embed,
        compile_constraint=_compile_constraint,
        generate=generate,
        collect=collect,
        next=_next,
        next_many=_next_many,
        append_image=_append_image,
        save_snapshot=_save_snapshot,
        restore_snapshot=_restore_snapshot,
        delete_snapshot=_delete_snapshot,
    ),
)
"""The modules of `corral_sdk._host.host`."""
