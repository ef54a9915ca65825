"""Errors of the host and of plugins, and their problem details (RFC 9457)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Error(Exception):
    """An error that a handler may raise: the client gets its status, code and detail."""

    status = 500
    code = "failed"

    def __init__(self, detail: str):
        super().__init__(detail)
        self.detail = detail
        self.headers: list[tuple[str, str]] = []

    def body(self) -> bytes:
        """The problem details."""
        problem = {"type": "about:blank", "status": self.status, "code": self.code, "detail": self.detail}
        return json.dumps(problem).encode()


class Invalid(Error):
    """An argument is invalid."""

    status, code = 400, "invalid"


class NotFound(Error):
    """No model, snapshot or sampling plugin of this name is available."""

    status, code = 404, "not-found"


class NotGranted(Error):
    """The deployment does not grant this operation or this amount."""

    status, code = 403, "not-granted"


class ContextFull(Error):
    """The call needs more positions than a sequence may have."""

    status, code = 400, "context-full"

    def __init__(self, needed: int, limit: int):
        super().__init__(f"the call needs {needed} positions; a sequence may have {limit}")
        self.needed, self.limit = needed, limit


class Refused(Error):
    """A queue, quota or rate limit is full. Retrying after `retry_after` seconds can succeed."""

    status, code = 429, "refused"

    def __init__(self, reason: str, retry_after: float):
        super().__init__(reason)
        self.retry_after = retry_after
        self.headers.append(("retry-after", str(max(1, -int(-retry_after // 1)))))


class Deadline(Error):
    """The request's deadline passed."""

    status, code = 504, "deadline"

    def __init__(self) -> None:
        super().__init__("the request's deadline passed")


class Cancelled(Error):
    """The client disconnected, or the operator canceled the request."""

    status, code = 499, "cancelled"

    def __init__(self) -> None:
        super().__init__("the request was canceled")


class Failed(Error):
    """The model, the device or the disk failed."""


class Problem(Error):
    """An error that the plugin defines. `code` is stable: clients may match on it."""

    def __init__(self, status: int, code: str, detail: str):
        super().__init__(detail)
        if type(status) is not int or not 400 <= status <= 599:
            raise TypeError(f"the status of a problem is {status!r}; expected an integer from 400 to 599")
        self.status, self.code = status, code


_CASES = {
    "Error_Invalid": Invalid,
    "Error_NotFound": NotFound,
    "Error_NotGranted": NotGranted,
    "Error_Failed": Failed,
}


def from_host(value: Any) -> Error:
    """Converts an error of the interface."""
    case = type(value).__name__
    match case:
        case "Error_ContextFull":
            return ContextFull(value.value.needed, value.value.limit)
        case "Error_Refused":
            return Refused(value.value.reason, value.value.retry_after_ms / 1000)
        case "Error_Deadline":
            return Deadline()
        case "Error_Cancelled":
            return Cancelled()
        case _ if case in _CASES:
            return _CASES[case](value.value)
        case _:
            return Failed(repr(value))


@contextmanager
def converted() -> Iterator[None]:
    """Raises the host's errors as those of this module."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        # The bindings raise `componentize_py_types.Err`, which this module cannot import under test.
        if type(error).__name__ != "Err":
            raise
        raise from_host(getattr(error, "value", None)) from None
