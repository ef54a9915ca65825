"""Readers for the fields of a JSON request.

    body = await request.fields(prompt=fields.string(), n=fields.integer(8, least=1, most=64))
    body.prompt, body.n

A field without a default is required. One with a default may be left out or null. A value of another type or out of its range,
a missing field and one that no reader names are 400, with the field's name and what was expected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .errors import Problem

REQUIRED: Any = object()
"""Stands for the default of a field that has none."""

_MOST = 2**31 - 1
_MOST_NUMBER = sys.float_info.max
# Characters of a wrong value that an error shows.
_SHOWN = 40


class Field:
    """A reader. `accepts` tells whether a value is as `expected`; the items of an array have a reader of their own."""

    def __init__(
        self, expected: str, accepts: Callable[[Any], bool], default: Any = REQUIRED, item: Field | None = None
    ):
        self.expected, self.accepts, self.default, self.item = expected, accepts, default, item

    def check(self, value: Any, name: str, code: str) -> Any:
        """Returns the value, or raises the 400 that says what is wrong with it."""
        if not self.accepts(value):
            raise Problem(400, code, f"`{name}` is {_shown(value)}; expected {self.expected}")
        if self.item is not None:
            for index, item in enumerate(value):
                self.item.check(item, f"{name}[{index}]", code)
        return value


def string(default: Any = REQUIRED) -> Field:
    """Text."""
    return Field("a string", _is_text, default)


def integer(default: Any = REQUIRED, *, least: int = 0, most: int = _MOST) -> Field:
    """A number without a fraction."""
    return Field(f"an integer from {least} to {most}", lambda value: type(value) is int and least <= value <= most, default)


def number(default: Any = REQUIRED, *, least: float = -_MOST_NUMBER, most: float = _MOST_NUMBER) -> Field:
    """A finite number."""
    bounds = f" of at least {least}" if least > -_MOST_NUMBER else ""
    bounds += f"{' and' if bounds else ' of'} at most {most}" if most < _MOST_NUMBER else ""
    return Field(f"a number{bounds}", lambda value: type(value) in (int, float) and least <= value <= most, default)


def boolean(default: Any = REQUIRED) -> Field:
    """True or false."""
    return Field("true or false", lambda value: type(value) is bool, default)


def array(item: Field, default: Any = REQUIRED, *, least: int = 0, most: int = _MOST) -> Field:
    """A list of values that another reader accepts."""
    return Field(
        f"an array of {least} to {most} items",
        lambda value: isinstance(value, list) and least <= len(value) <= most,
        default,
        item,
    )


def value(default: Any = REQUIRED) -> Field:
    """Any value, for a function that checks it itself."""
    return Field("a value", lambda _: True, default)


def read(body: Any, **fields: Field) -> SimpleNamespace:
    """The fields of a JSON value, as attributes."""
    if not isinstance(body, dict):
        raise Problem(400, "invalid-body", f"the body is {_shown(body)}; expected an object")
    for name in body:
        if name not in fields:
            known = ", ".join(fields)
            raise Problem(400, "invalid-body", f"there is no field {_shown(name)}; expected {known}")
    found = SimpleNamespace()
    for name, field in fields.items():
        code = f"invalid-{name.replace('_', '-')}"
        value = body.get(name)
        if value is None and field.default is not REQUIRED:
            value = field.default
        elif name not in body:
            raise Problem(400, code, f"`{name}` is missing; expected {field.expected}")
        else:
            value = field.check(value, name, code)
        setattr(found, name, value)
    return found


def _is_text(value: Any) -> bool:
    # JSON can hold half of a surrogate pair, which is no text.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"an array of {len(value)} items"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
