"""Checks of arguments and of responses.

The bindings end a component on a value of another type, and on half of a surrogate pair; a host ends a session.
"""

from __future__ import annotations

import math
import re
from types import CoroutineType
from typing import Any

from .errors import Invalid

_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Headers that the host sets, or that belong to a connection: a component may not set them.
_FORBIDDEN_HEADERS = {
    "connection",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
}


def string(value: Any, name: str) -> str:
    """Checks that a value is text."""
    if not isinstance(value, str):
        raise _wrong(value, name, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{name} has half of a surrogate pair; expected text") from None
    return value


def number(value: Any, name: str) -> float:
    """Checks that a value is a finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(value, name, "a finite number")
    return float(value)


def integer(value: Any, name: str, most: int = 2**32 - 1) -> int:
    """Checks that a number fits an unsigned type."""
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(value, name, f"an integer from 0 to {most}")
    return value


def tokens(value: Any, name: str) -> list[int]:
    """Checks that a value is a list of tokens."""
    if not isinstance(value, (list, tuple)):
        raise _wrong(value, name, "a list of tokens")
    return [integer(token, f"a token of {name}") for token in value]


def response(status: Any, headers: Any, body: Any) -> None:
    """Checks the parts of a response. What is wrong with them is the plugin's fault, not the client's."""
    if type(status) is not int or not 200 <= status <= 599:
        raise TypeError(f"the status is {status!r}; expected an integer from 200 to 599")
    if not isinstance(body, bytes):
        raise TypeError(f"the body is of type {type(body).__name__}; expected bytes: Response.text takes text")
    for name, value in headers:
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise TypeError(f"a header has the name {name!r}; expected letters, digits and hyphens")
        if name.lower() in _FORBIDDEN_HEADERS:
            raise TypeError(f"the plugin sets the header {name}, which the host sets; remove it")
        if not isinstance(value, str) or _CONTROL.search(value):
            raise TypeError(f"the header {name} is {value!r}; expected a string without control characters")


def _wrong(value: Any, name: str, expected: str) -> Exception:
    if isinstance(value, CoroutineType):
        return TypeError(f"{name} is a coroutine; expected {expected}: is an `await` missing?")
    shown = repr(value) if isinstance(value, (int, float)) else f"of type {type(value).__name__}"
    return Invalid(f"{name} is {shown}; expected {expected}")
