"""One HTTP/1.1 request whose body and response stay open: lines in both directions."""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from corral_sdk.errors import Error, Invalid

from .errors import Disconnected, from_refusal

# Bytes that are read at once. Also bounds the response's head.
_READ = 1 << 16
# Longest line of a host, in bytes. The interface passes at most 32 MiB at once, which base64 lengthens.
_MAX_LINE = 64 << 20


@dataclass(frozen=True)
class Target:
    """The parts of a URL of sessions."""

    url: str
    is_secure: bool
    host: str
    port: int
    authority: str
    path: str


def parse(url: str) -> Target:
    """Splits a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Invalid(f"the host's URL is {url!r}; expected one such as http://127.0.0.1:8080/sessions")
    is_secure = parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    return Target(url, is_secure, parts.hostname, port or (443 if is_secure else 80), parts.netloc, path)


def trusting(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Settings of TLS that trust the certificates in a file, or those of the system."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Invalid(f"ca_file is {str(ca_file)!r}, which has no certificates in PEM: {error}") from None
    if ca_file is not None:
        # Since Python 3.13, contexts refuse what `openssl req -x509` makes.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class Connection:
    """An open request. One task writes at a time, another one reads."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._target, self._reader, self._writer = target, reader, writer
        self._headers: http.client.HTTPMessage | None = None

    @staticmethod
    async def open(target: Target, key: str | None, context: ssl.SSLContext | None) -> Connection:
        """Connects and sends the request's head. `context` is that of `trusting`, if the URL is one of https."""
        if key is not None and not (key.isascii() and key.isprintable()):
            raise Invalid("the API key contains characters that no key has; check for a line break at its end")
        try:
            opened = asyncio.open_connection(target.host, target.port, ssl=context, limit=_READ)
            reader, writer = await opened
        except (OSError, UnicodeError) as error:
            is_untrusted = isinstance(error, ssl.SSLCertVerificationError)
            hint = "; `ca_file` names the certificates to trust" if is_untrusted else ""
            raise Disconnected(f"cannot reach the host at {target.url}: {error}{hint}") from None
        head = [
            f"POST {target.path} HTTP/1.1",
            f"Host: {target.authority}",
            "Content-Type: application/x-ndjson",
            "Transfer-Encoding: chunked",
        ]
        if key:
            head.append(f"Authorization: Bearer {key}")
        writer.write("\r\n".join([*head, "", ""]).encode())
        return Connection(target, reader, writer)

    async def accepted(self) -> None:
        """Waits for the response's head. Raises the error of a host that refuses the request."""
        status, headers = 100, None
        while 100 <= status < 200:
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, _, rest = head.partition(b"\r\n")
            words = first.split(None, 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                raise Disconnected(f"what answers at {self._target.url} is no HTTP server")
            status, headers = int(words[1]), http.client.parse_headers(io.BytesIO(rest))
        self._headers = headers
        if status != 200:
            raise await self._refusal(status)

    async def _refusal(self, status: int) -> Error:
        assert self._headers is not None
        body = bytearray()
        async for piece in self._body():
            body += piece
            if len(body) > _READ:
                break
        return from_refusal(self._target.url, status, self._headers["retry-after"], bytes(body))

    async def send(self, data: bytes) -> None:
        """Writes a piece of the request's body, and waits while too much is unsent."""
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def finish(self) -> None:
        """Ends the request's body."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the response, to its end."""
        buffer = bytearray()
        async for piece in self._body():
            *ended, rest = piece.split(b"\n")
            for part in ended:
                yield bytes(buffer + part)
                buffer.clear()
            buffer += rest
            if len(buffer) > _MAX_LINE:
                raise Disconnected(f"the host sent a line of more than {_MAX_LINE} bytes")

    async def _body(self) -> AsyncIterator[bytes]:
        headers, reader = self._headers, self._reader
        assert headers is not None
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while line := await reader.readline():
                size = int(line.split(b";")[0], 16)
                if not size:
                    return
                while size:
                    piece = await reader.read(min(size, _READ))
                    if not piece:
                        raise EOFError
                    size -= len(piece)
                    yield piece
                await reader.readexactly(2)
            raise EOFError
        left = int(headers.get("content-length", sys.maxsize))
        while left and (piece := await reader.read(min(left, _READ))):
            left -= len(piece)
            yield piece

    def abort(self) -> None:
        """Closes the connection now."""
        self._writer.transport.abort()
