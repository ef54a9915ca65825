"""HTTP: requests, responses, and the handler that a component exports."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

from . import _check
from .errors import Cancelled, Error, Problem
from .fields import Field, read
from .generation import Generation

BODY_LIMIT = 1 << 20
"""Default limit of request bodies, in bytes."""

_READ = 1 << 16
# Stand for the text in a sample event, so that the bytes around it are known.
_SAMPLE = "\U0010ffff"


class Request:
    """An HTTP request. Header names are in lower case."""

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: bytes | str | dict[str, Any] | AsyncIterator[bytes] = b"",
    ):
        # Not `urlsplit`: it takes `//NAME` for a host, and fails at `//[`.
        path, _, query = target.partition("?")
        self.method, self.path = method, path
        self.query = {name: values[0] for name, values in parse_qs(query).items()}
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}
        if isinstance(body, dict):
            body = json.dumps(body)
        self._body = body.encode() if isinstance(body, str) else body

    async def body(self, limit: int = BODY_LIMIT) -> bytes:
        """Reads the whole body; a larger one is 413."""
        if not isinstance(self._body, bytes):
            read, source = bytearray(), self._body
            async for part in source:
                read += part
                if len(read) > limit:
                    break
            self._body = bytes(read)
        if len(self._body) > limit:
            raise Problem(413, "body-too-large", f"the body is larger than {limit} bytes")
        return self._body

    async def text(self, limit: int = BODY_LIMIT) -> str:
        """Reads the body as UTF-8."""
        try:
            return (await self.body(limit)).decode()
        except UnicodeDecodeError as error:
            raise Problem(400, "invalid-body", f"the body is not UTF-8: {error}") from None

    async def json(self, limit: int = BODY_LIMIT) -> Any:
        """Reads the body as JSON."""
        try:
            return json.loads(await self.body(limit))
        except (ValueError, RecursionError) as error:
            raise Problem(400, "invalid-body", f"the body is not JSON: {error}") from None

    async def fields(self, **fields: Field) -> SimpleNamespace:
        """Reads the body as a JSON object with these fields; see `corral_sdk.fields`."""
        return read(await self.json(), **fields)


class EventWriter:
    """Writes server-sent events. Writing waits until the client has taken the event, and raises `Cancelled`
    after the client has disconnected."""

    def __init__(self, write: Callable[[bytes], Awaitable[bool]]):
        self._write = write

    async def data(self, text: str, name: str | None = None) -> None:
        """Sends an event, with a name if it has one."""
        await self.bytes(_event(text, name))

    async def json(self, value: Any, name: str | None = None) -> None:
        """Sends an event with a value as JSON."""
        await self.data(json.dumps(value), name)

    async def bytes(self, data: bytes) -> None:
        """Sends bytes as they are."""
        if not await self._write(data):
            raise Cancelled()


Write = Callable[[EventWriter], Awaitable[None]]


class Response:
    """An HTTP response."""

    def __init__(self, body: bytes = b"", status: int = 200, headers: dict[str, str] | None = None):
        self.status, self.content = status, body
        self.headers = list((headers or {}).items())
        self.write: Write | None = None
        self.framed: tuple[Generation, Callable[[str], Any], Write | None] | None = None

    @staticmethod
    def text(text: str, status: int = 200) -> Response:
        """Text."""
        return Response(_check.string(text, "text").encode(), status, {"content-type": "text/plain; charset=utf-8"})

    @staticmethod
    def json(value: Any, status: int = 200) -> Response:
        """A value as JSON."""
        return Response(json.dumps(value).encode(), status, {"content-type": "application/json"})

    @staticmethod
    def problem(error: Error) -> Response:
        """The problem details of an error."""
        headers = {"content-type": "application/problem+json", **dict(error.headers)}
        return Response(error.body(), error.status, headers)

    @staticmethod
    def events(write: Write | AsyncIterable[Any]) -> Response:
        """Server-sent events: a function that writes them, or an iterator of their values."""
        response = Response(b"", 200, {"content-type": "text/event-stream", "cache-control": "no-cache"})
        response.write = write if callable(write) else _writer(write)
        return response

    @staticmethod
    def text_events(
        generation: Generation, event: Callable[[str], Any], end: Write | None = None
    ) -> Response:
        """An event with the value `event(text)` for each chunk of a generation's text. The host writes these
        without running the plugin, which costs a fraction. Then `end` writes the remaining events, after
        `await generation.outcome()`."""
        response = Response.events(_writer(_values(generation, event)))
        response.framed = (generation, event, end)
        return response


def _event(text: str, name: str | None) -> bytes:
    lines = [f"event: {name}"] if name else []
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines += [f"data: {line}" for line in text.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def _writer(values: AsyncIterable[Any]) -> Write:
    async def write(events: EventWriter) -> None:
        async for value in values:
            await (events.data(value) if isinstance(value, str) else events.json(value))

    return write


async def _values(generation: Generation, event: Callable[[str], Any]) -> AsyncIterator[Any]:
    async for chunk in generation:
        if chunk.text:
            yield event(chunk.text)


def around(event: Callable[[str], Any]) -> tuple[bytes, bytes]:
    """The bytes of an event before and after its text, which is quoted JSON."""
    before, text, after = json.dumps(event(_SAMPLE)).partition(json.dumps(_SAMPLE))
    if not text:
        raise ValueError("`event` must return a value that contains the text once, unchanged")
    return f"data: {before}".encode(), f"{after}\n\n".encode()


async def answer(function: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Calls a plugin's function. An error becomes its response; any other exception is 500 `plugin-failed`,
    and its traceback goes to the plugin's log."""
    try:
        called = function(request)
        if not isinstance(called, Awaitable):
            raise TypeError("the handler is not async; write `async def`")
        response = await called
        if not isinstance(response, Response):
            raise TypeError(f"the handler returned {type(response).__name__}; expected a Response, as of Response.text")
        _check.response(response.status, response.headers, response.content)
        return response
    except Error as error:
        return Response.problem(error)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        last = f"{type(error).__name__}: {error}"
        return Response.problem(Problem(500, "plugin-failed", f"the plugin failed: {last}"))


async def write_events(write: Write, events: EventWriter) -> None:
    """Writes events. An error becomes the last one, named `error`."""
    try:
        await write(events)
        return
    except Cancelled:
        return
    except Error as error:
        problem = error
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        problem = Problem(500, "plugin-failed", f"the plugin failed: {type(error).__name__}: {error}")
    try:
        await events.data(problem.body().decode(), "error")
    except Cancelled:
        pass


def handler(function: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Makes a function the component's handler: defines the class `Handler`, which componentize-py looks
    for in the plugin's module."""
    try:
        import wit_world.exports
    except ModuleNotFoundError:
        # Under test there are no bindings.
        return function
    # Imported now: a running component has no files.
    from ._component import handle

    class Handler(wit_world.exports.Handler):
        async def handle(self, request: Any) -> Any:
            return await handle(function, request)

    function.__globals__["Handler"] = Handler
    return function
