"""A session: sends commands, sorts the replies, and renews the lease, on a thread of its own.

Commands may come from any thread; they leave in the order of the calls. A command whose reply nobody awaits is about a
handle: its error is that of the next call on this handle. Once the session ends, every waiting and every later call fails.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import ssl
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

from corral_sdk.errors import Error, Failed, Invalid

from ._connection import Connection, Target, parse, trusting
from .errors import Disconnected, TimedOut, from_reply

# The protocol's version, and the longest line that a host takes.
_VERSION = 1
_MAX_LINE = 16 << 20
# Commands without a reply. A host runs as many at once.
_MAX_COMMANDS = 512
# Seconds that the host has to end a session that the program closes.
_CLOSING = 5.0

CURRENT: ContextVar[Session] = ContextVar("corral_remote.session")


def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    timeout: float = 300.0,
    connect_timeout: float = 10.0,
    renew_every: float = 10.0,
    ca_file: str | os.PathLike[str] | None = None,
    ssl: ssl.SSLContext | None = None,
) -> Session:
    """A session, for `async with`.

    `url` is the route of the host's plugin `sessions`, by default `$CORRAL_REMOTE_URL`; `key` is an API key, by default
    `$CORRAL_REMOTE_KEY`. Times are in seconds: `timeout` is the longest silence of the host while a call waits, and
    `renew_every` the pause between renewals of the lease, less than the host's `--io-timeout`. For https, `ca_file` is a PEM
    file of the certificates to trust, by default the system's; `ssl` has all settings of TLS and takes its place."""
    url = url or os.environ.get("CORRAL_REMOTE_URL")
    if not url:
        example = "http://127.0.0.1:8080/sessions"
        raise Invalid(f"there is no host; pass the URL of its sessions or set CORRAL_REMOTE_URL, e.g. {example}")
    key = key or os.environ.get("CORRAL_REMOTE_KEY") or None
    target = parse(url)
    context = (ssl or trusting(ca_file)) if target.is_secure else None
    return Session(target, key, timeout, connect_timeout, renew_every, context)


def current() -> Session:
    """The session of the running task."""
    session = CURRENT.get(None)
    if session is None:
        raise Disconnected("there is no session; use `async with corral_remote.connect(URL):`")
    return session


class Entry(Protocol):
    """Takes the reply to a command, on the session's thread."""

    def replied(self, value: Any, error: Error | None) -> None: ...


class _Reply:
    """A reply that a caller awaits."""

    def __init__(self) -> None:
        self.future = new_future()

    def replied(self, value: Any, error: Error | None) -> None:
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class _Ignored:
    def replied(self, value: Any, error: Error | None) -> None:
        pass


IGNORED = _Ignored()


def new_future() -> Future[Any]:
    """A future that its readers cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Handle:
    """Something of the host's, under the program's number. The host drops it with this object."""

    def __init__(self, session: Session, kind: str):
        self.session, self.kind, self.number = session, kind, next(session.numbers)
        self.error: Error | None = None

    def replied(self, value: Any, error: Error | None) -> None:
        """Keeps the error of a command that nobody awaits."""
        self.error = self.error or error

    def check(self) -> None:
        """Raises the error of an earlier command."""
        if self.error is not None:
            raise self.error

    def post(self, call: str, **arguments: Any) -> None:
        """Sends a command about this handle."""
        self.check()
        self.session.wait(self.session.submit([({"call": call, **arguments}, self)]))

    def __del__(self) -> None:
        with suppress(Exception):
            self.session.submit([({"call": "drop", "kind": self.kind, "handle": self.number}, IGNORED)])


class Session:
    """An open session; see `connect`."""

    def __init__(
        self,
        target: Target,
        key: str | None,
        timeout: float,
        connect_timeout: float,
        renew_every: float,
        context: ssl.SSLContext | None,
    ):
        self._target, self._key, self._context = target, key, context
        self._timeout, self._connect_timeout, self._renew_every = timeout, connect_timeout, renew_every
        self.numbers, self._ids = itertools.count(1), itertools.count(1)
        self._loop: Any = None
        self._opened, self._closed = new_future(), new_future()
        # Reentrant: a collection of garbage may drop handles anywhere.
        self._lock = threading.RLock()
        self._pending: dict[int, Any] = {}
        self._failure: Error | None = None
        self._connection: Connection | None = None
        self._main: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._before: Session | None = None

    async def __aenter__(self) -> Session:
        if self._loop is not None:
            raise Disconnected("a session is opened once; call `connect` again")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="corral_remote", daemon=True).start()
        try:
            await asyncio.wrap_future(self._opened)
        except BaseException:
            self._request_close()
            raise
        self._before = CURRENT.get(None)
        CURRENT.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._before is not None:
            CURRENT.set(self._before)
        await self.close()

    async def close(self) -> None:
        """Ends the session. The host drops all that it held."""
        if self._loop is not None:
            self._request_close()
            await asyncio.wrap_future(self._closed)

    def submit(self, commands: list[tuple[dict[str, Any], Entry]]) -> Future[None]:
        """Sends commands. The future completes once they are written."""
        numbered = [(next(self._ids), call, entry) for call, entry in commands]
        data = b"".join(_line({"id": number, **call}) for number, call, _ in numbered)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._pending.update((number, entry) for number, _, entry in numbered)
            return asyncio.run_coroutine_threadsafe(self._send(data, len(numbered)), self._loop)

    def wait(self, future: Future[Any]) -> Any:
        """Blocks the calling thread until a future completes."""
        try:
            return future.result(self._timeout)
        except CancelledError:
            raise self._failure or Disconnected("the session is closed") from None
        except TimeoutError:
            raise self._timed_out() from None

    async def waited(self, future: Future[Any]) -> Any:
        """Awaits a future that the session's thread completes."""
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise self._timed_out() from None

    def ask_now(self, call: str, *about: Handle, **arguments: Any) -> Any:
        """Sends a command about handles, and blocks the calling thread until its reply."""
        try:
            return self.wait(self._ask(call, about, arguments))
        finally:
            _raise_late(about)

    async def ask(self, call: str, *about: Handle, **arguments: Any) -> Any:
        """Sends a command about handles, and awaits its reply."""
        try:
            return await self.waited(self._ask(call, about, arguments))
        finally:
            # The replies to earlier commands have come before, and explain this one.
            _raise_late(about)

    def _ask(self, call: str, about: tuple[Handle, ...], arguments: dict[str, Any]) -> Future[Any]:
        for handle in about:
            handle.check()
        reply = _Reply()
        self.submit([({"call": call, **arguments}, reply)])
        return reply.future

    def _timed_out(self) -> Error:
        return TimedOut(f"the host at {self._target.url} did not reply within {self._timeout:g} s")

    # All below runs on the session's thread, except `_request_close`.

    def _request_close(self) -> None:
        with suppress(RuntimeError):
            # The loop may be closed already.
            self._loop.call_soon_threadsafe(self._begin_close)

    def _begin_close(self) -> None:
        # After a failure the loop ends by itself, and might not run the task.
        if self._closer is None and self._failure is None:
            self._closer = self._loop.create_task(self._shut_down())

    async def _shut_down(self) -> None:
        is_generating = any(hasattr(entry, "chunk") for entry in list(self._pending.values()))
        if self._connection is not None and self._opened.done() and not is_generating:
            with suppress(OSError):
                async with asyncio.timeout(_CLOSING):
                    # Nothing may follow the end of the body.
                    await self._writing.acquire()
                    await self._connection.finish()
                    # The end of the response ends the session earlier.
                    await asyncio.Event().wait()
        if self._main is not None:
            self._main.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._closed.set_result(None)

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        self._writing, self._slots = asyncio.Lock(), asyncio.Semaphore(_MAX_COMMANDS)
        try:
            await self._speak()
        except (Exception, asyncio.CancelledError) as error:
            failure = self._failure_of(error)
        with self._lock:
            self._failure = failure
            pending, self._pending = self._pending, {}
        if not self._opened.done():
            self._opened.set_exception(failure)
        for entry in pending.values():
            entry.replied(None, failure)
        # What was submitted before is cancelled with the loop.
        await asyncio.sleep(0)

    def _failure_of(self, error: BaseException) -> Error:
        if self._closer is not None:
            return Disconnected("the session is closed")
        if isinstance(error, Error):
            return error
        if isinstance(error, TimeoutError):
            return TimedOut(f"the host at {self._target.url} did not open a session within {self._timeout:g} s")
        if isinstance(error, (OSError, EOFError)):
            why = str(error) or "the connection was cut off"
            return Disconnected(f"the session with the host at {self._target.url} has ended: {why}")
        return Failed(f"the host at {self._target.url} sent something unexpected: {error!r}; its version may not fit")

    async def _speak(self) -> None:
        connecting = Connection.open(self._target, self._key, self._context)
        try:
            connection = await asyncio.wait_for(connecting, self._connect_timeout)
        except TimeoutError:
            why = f"no connection within {self._connect_timeout:g} s"
            raise Disconnected(f"cannot reach the host at {self._target.url}: {why}") from None
        self._connection = connection
        renewal = asyncio.create_task(self._renew(connection))
        try:
            async with asyncio.timeout(self._timeout):
                await connection.accepted()
                lines = connection.lines()
                hello = json.loads(await anext(lines, b"null"))
            version = hello["session"]
            if version != _VERSION:
                raise Failed(f"the host speaks version {version} of the session protocol; expected {_VERSION}")
            self._opened.set_result(None)
            async for line in lines:
                self._receive(json.loads(line))
            why = "it reached a limit of the deployment, was silent for too long, or the host stops"
            raise Disconnected(f"the host at {self._target.url} has ended the session: {why}")
        finally:
            renewal.cancel()
            connection.abort()

    async def _renew(self, connection: Connection) -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(self._renew_every)
                async with self._writing:
                    await connection.send(b"\n")

    async def _send(self, data: bytes, count: int) -> None:
        # The lock's queue keeps the order of the calls.
        async with self._writing:
            try:
                async with asyncio.timeout(self._timeout):
                    for _ in range(count):
                        await self._slots.acquire()
                    assert self._connection is not None
                    await self._connection.send(data)
            except OSError:
                # Also after a timeout: the host takes no more. Ends the reader, too, which fails all calls.
                if self._connection is not None:
                    self._connection.abort()

    def _receive(self, reply: dict[str, Any]) -> None:
        number = reply["id"]
        if "chunk" in reply:
            # A generation that has failed may have none.
            if number in self._pending:
                self._pending[number].chunk(reply["chunk"])
            return
        error = from_reply(reply["error"]) if "error" in reply else None
        if number == 0:
            # The host ends the session, and says why.
            raise Disconnected(f"the host at {self._target.url} has ended the session: {error}")
        entry = self._pending.get(number)
        if entry is not None:
            # If it cannot read the reply, the session's end is its reply.
            entry.replied(reply.get("ok"), error)
            self._slots.release()
            with self._lock:
                del self._pending[number]


def _raise_late(about: tuple[Handle, ...]) -> None:
    for handle in about:
        if handle.error is not None:
            raise handle.error


def _line(command: dict[str, Any]) -> bytes:
    try:
        line = json.dumps(command, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Invalid(f"an argument of {command['call']} is invalid: {error}") from None
    if len(line) >= _MAX_LINE:
        raise Invalid(f"the arguments of {command['call']} take {len(line)} bytes; a host takes {_MAX_LINE}")
    return line + b"\n"
