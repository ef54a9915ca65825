"""Errors of sessions. Those of the host's functions are in `corral_sdk.errors`."""

from __future__ import annotations

import json
from typing import Any

from corral_sdk.errors import (
    Cancelled,
    ContextFull,
    Deadline,
    Error,
    Failed,
    Invalid,
    NotFound,
    NotGranted,
    Refused,
)


class Disconnected(Failed):
    """There is no session: the host cannot be reached, or the session has ended. All that it held is lost."""

    code = "disconnected"


class TimedOut(Deadline, TimeoutError):
    """The host did not reply within the `timeout` of `connect`. The session goes on."""

    def __init__(self, detail: str):
        Error.__init__(self, detail)


_CASES = {"invalid": Invalid, "not-found": NotFound, "not-granted": NotGranted, "failed": Failed}


def from_reply(error: dict[str, Any]) -> Error:
    """Converts the error of a reply."""
    match error["code"]:
        case "context-full":
            return ContextFull(error["needed"], error["limit"])
        case "refused":
            return Refused(error["detail"], error["retry_after_ms"] / 1000)
        case "deadline":
            return Deadline()
        case "cancelled":
            return Cancelled()
        case code:
            return _CASES.get(code, Failed)(error.get("detail") or f"the host reports {code}")


def from_refusal(url: str, status: int, retry_after: str | None, body: bytes) -> Error:
    """Converts the answer of a host that opens no session. Its `status` and `code` are those of the problem."""
    problem: Any = None
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        pass
    if not isinstance(problem, dict):
        problem = {}
    # A deployment may have OpenAI's format of errors.
    nested = problem.get("error")
    fields = nested if isinstance(nested, dict) else problem
    reason = fields.get("detail") or fields.get("message") or "it gives no reason"
    detail = f"the host at {url} answers {status}: {reason}"
    error: Error
    match status:
        case 401 | 403:
            error = NotGranted(detail)
        case 404:
            error = NotFound(detail)
        case 429 | 503:
            seconds = retry_after or ""
            error = Refused(detail, float(seconds) if seconds.isdecimal() else 1.0)
        case _:
            error = Failed(detail)
    error.status = status
    code = fields.get("code")
    if isinstance(code, str):
        error.code = code
    return error
