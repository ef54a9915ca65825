"""Sessions of `corral_remote` with hosts that misbehave. `tests/tests/remote/remote_python.rs` has real ones."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import pytest

from corral_remote import (
    ContextFull,
    Disconnected,
    Error,
    Failed,
    Invalid,
    Model,
    NotGranted,
    Refused,
    TimedOut,
    connect,
)
from corral_remote._connection import parse
from corral_remote.errors import from_reply

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INFO = dict(
    name="m",
    vocabulary=300,
    context=8,
    embedding_length=4,
    bos=None,
    eos=None,
    end_of_generation=[],
    chat_template=None,
    can_fork=True,
    adapters=[],
    later=1,
)


def chunk(*values):
    data = "".join(json.dumps(value) + "\n" for value in values).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextmanager
def host(*answers):
    """A host that sends the first bytes after the request's head, and the next ones after each line of commands. Then it
    reads to the end, or closes the connection after None."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener.accept()[0] as client, client.makefile("rb") as lines:
            while lines.readline() != b"\r\n":
                pass
            for index, answer in enumerate(answers):
                while index and (line := lines.readline()) and not line.startswith(b"{"):
                    pass
                if answer is None or index and not line:
                    return
                client.sendall(answer)
            # The end of the request's body, or of the connection.
            while lines.readline() not in (b"0\r\n", b""):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/sessions"
    finally:
        listener.close()
        thread.join()


def ask(*answers, **settings):
    """Opens a session and a model."""

    async def main(url):
        async with connect(url, **settings):
            return await Model.open()

    with host(*answers) as url:
        return asyncio.run(main(url))


def refusal(status, body, *headers):
    head = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def test_model_is_opened_in_pieces():
    hello = HEAD + chunk({"session": 1, "later": 2})
    reply = chunk({"id": 1, "ok": INFO})
    # A chunk may begin and end anywhere.
    pieces = reply.split(b"\r\n")[1]
    split = b"".join(b"1\r\n%c\r\n" % byte for byte in pieces)
    for answer in (reply, split):
        assert ask(hello, answer).info.context == 8
    assert ask(b"HTTP/1.1 100 Continue\r\n\r\n" + hello, reply).info.name == "m"


def test_host_that_is_none_is_an_error():
    hello = HEAD + chunk({"session": 1})
    for answers, expected, part in [
        ([b"SSH-2.0-x\r\n\r\n"], Disconnected, "is no HTTP server"),
        ([b"x" * 100_000], Failed, "something unexpected"),
        ([None], Disconnected, "has ended"),
        ([HEAD + chunk({"session": 2})], Failed, "speaks version 2"),
        ([HEAD + chunk("what")], Failed, "something unexpected"),
        ([HEAD + b"0\r\n\r\n"], Failed, "something unexpected"),
        ([hello, None], Disconnected, "was cut off"),
        ([hello, b"0\r\n\r\n"], Disconnected, "reached a limit"),
        ([hello, chunk({"id": 0, "error": {"code": "failed", "detail": "what"}})], Disconnected, "has ended.*: what"),
        ([hello, chunk({"id": 1, "ok": {}})], Failed, "lacks 'name'"),
        ([hello, b"zz\r\n"], Failed, "something unexpected"),
    ]:
        with pytest.raises(expected, match=part):
            ask(*answers)


def test_silent_host_is_bounded():
    with pytest.raises(TimedOut, match="did not open a session within 0.1 s"):
        ask(b"", timeout=0.1)
    with pytest.raises(TimeoutError, match="did not reply within 0.5 s"):
        ask(HEAD + chunk({"session": 1}), b"", timeout=0.5)


def test_refusal_has_fields_of_the_problem():
    problem = json.dumps({"status": 429, "code": "quota", "detail": "too many"}).encode()
    with pytest.raises(Refused, match="answers 429: too many") as raised:
        ask(refusal(429, problem, "Retry-After: 7"))
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (429, "quota", 7.0)
    openai = json.dumps({"error": {"message": "no key", "code": "invalid_api_key"}}).encode()
    with pytest.raises(NotGranted, match="answers 401: no key") as raised:
        ask(refusal(401, openai))
    assert raised.value.code == "invalid_api_key"
    with pytest.raises(Failed, match="answers 500: it gives no reason"):
        ask(refusal(500, b"<html>"))


def test_late_error_is_that_of_the_generation():
    async def main(url):
        async with connect(url):
            sequence = (await Model.open()).sequence([1, 2])
            generation = sequence.generate(8)
            with pytest.raises(Refused, match="too many"):
                await generation.text()
            with pytest.raises(Refused, match="too many"):
                sequence.append([3])

    refused = {"code": "refused", "detail": "too many", "retry_after_ms": 1}
    answers = [
        HEAD + chunk({"session": 1}),
        chunk({"id": 1, "ok": INFO}),
        *[b""] * 3,
        chunk(
            {"id": 2, "ok": None},
            {"id": 3, "error": refused},
            {"id": 4, "ok": None},
            {"id": 5, "chunk": {"tokens": [], "text": ""}},
        ),
    ]
    with host(*answers) as url:
        asyncio.run(main(url))


def test_errors_of_replies_have_their_class():
    full = from_reply({"code": "context-full", "needed": 9, "limit": 8})
    assert isinstance(full, ContextFull) and (full.needed, full.limit) == (9, 8)
    codes = ["invalid", "not-found", "not-granted", "failed"]
    found = [from_reply({"code": code, "detail": "x"}) for code in codes]
    assert [error.code for error in found] == codes
    assert [from_reply({"code": code}).status for code in ["deadline", "cancelled"]] == [504, 499]
    assert isinstance(from_reply({"code": "later"}), Failed)


def test_url_has_its_parts():
    for url, secure, address, path in [
        ("http://127.0.0.1:8080/sessions", False, ("127.0.0.1", 8080), "/sessions"),
        ("https://host/a b?c=d", True, ("host", 443), "/a%20b?c=d"),
        ("http://[::1]", False, ("::1", 80), "/"),
    ]:
        target = parse(url)
        assert (target.is_secure, (target.host, target.port), target.path) == (secure, address, path)
    for url in ["ftp://host/", "host/sessions", "http:///sessions", "http://host:x/", "http://me@host/"]:
        with pytest.raises(Invalid, match="expected one such as"):
            parse(url)


def test_program_without_a_session_is_told():
    async def closed():
        with host(HEAD + chunk({"session": 1})) as url:
            async with connect(url):
                pass
            await Model.open()

    with pytest.raises(Disconnected, match="there is no session"):
        asyncio.run(Model.open())
    with pytest.raises(Disconnected, match="is closed"):
        asyncio.run(closed())
    with pytest.raises(Invalid, match="CORRAL_REMOTE_URL"):
        connect()
    with pytest.raises(Error):
        connect("nowhere")
