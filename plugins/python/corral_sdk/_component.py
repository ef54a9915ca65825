"""WASI HTTP: from the component's request to its response. Imported in a component only."""

from typing import Any

import componentize_py_async_support
import wit_world
from componentize_py_types import Ok
from wit_world.imports import inference_async, wasi_http_types as wasi

from . import _host
from .errors import converted
from .http import EventWriter, Request, Response, answer, around, write_events

_host.use_bindings()


async def handle(function: Any, request: Any) -> Any:
    """Answers a request of the host."""
    response = await answer(function, await _request(request))
    headers = wasi.Fields.from_list([(name, value.encode()) for name, value in response.headers])
    reader = None
    if response.framed is not None:
        reader = _framed(response)
    elif response.write is not None:
        writer, reader = wit_world.byte_stream()
        componentize_py_async_support.spawn(_write(writer, response.write))
    elif response.content:
        writer, reader = wit_world.byte_stream()
        componentize_py_async_support.spawn(_send(writer, response.content))
    make_trailers = wit_world.result_option_wasi_http_types_fields_wasi_http_types_error_code_future
    trailers = make_trailers(lambda: Ok(None))[1]
    made = wasi.Response.new(headers, reader, trailers)[0]
    made.set_status_code(response.status)
    return made


async def _request(request: Any) -> Request:
    method = request.get_method()
    name = type(method).__name__.removeprefix("Method_")
    method = method.value if name == "Other" else name.upper()
    headers: dict[str, str] = {}
    for key, value in request.get_headers().copy_all():
        headers.setdefault(key.lower(), value.decode(errors="replace"))
    target = request.get_path_with_query() or "/"
    result = wit_world.result_unit_wasi_http_types_error_code_future(lambda: Ok(None))[1]
    body = wasi.Request.consume_body(request, result)[0]
    return Request(method, target, headers, _body(body))


async def _body(reader: Any) -> Any:
    with reader:
        while part := await reader.read(1 << 16):
            yield part


async def _send(writer: Any, content: bytes) -> None:
    with writer:
        await writer.write_all(content)


def _event_writer(writer: Any) -> EventWriter:
    async def write(data: bytes) -> bool:
        return await writer.write_all(data) == len(data)

    return EventWriter(write)


async def _write(writer: Any, write: Any) -> None:
    with writer:
        await write_events(write, _event_writer(writer))


def _framed(response: Response) -> Any:
    """The events of a generation, which the host writes."""
    assert response.framed is not None
    generation, event, end = response.framed
    before, after = around(event)
    rest_writer, rest = wit_world.byte_stream()
    framing = inference_async.Framing(b"", before, after, True)

    async def write(events: EventWriter) -> None:
        if end is None:
            await generation.outcome()
        else:
            await end(events)

    with converted():
        reader = inference_async.frame(generation.take_chunks(), framing, rest)
    componentize_py_async_support.spawn(_write(rest_writer, write))
    return reader
