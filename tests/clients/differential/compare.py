"""Compares reduced answers, and explains their differences by `known_differences.toml`.

A difference is a line of text:

    status 200, here 400          and nothing else, if only one of them is a success
    type text/plain, here application/json
    missing PATH                  a member that only the recorded answer has
    added PATH                    a member that only the answer here has
    PATH is string, here null     another type
    PATH = 1, here 2              another value

An entry of `known_differences.toml` has a reason, names of requests, and differences; `*` stands for any text. Each
difference of the entry must occur in each of its requests, or with `*` in one of them: what no longer differs must not
stay.
"""

import json
import re
import tomllib
from functools import cache

from differential.requests import DIRECTORY

PARTS = {"status": "status", "type": "type", "allowed-origin": "allowed origin", "events": "events"}


def differences(recorded, answer):
    """The differences of an answer from the recorded one."""
    if (recorded["status"] < 300) != (answer["status"] < 300):
        return [f"status {recorded['status']}, here {answer['status']}"]
    found = []
    for part, name in PARTS.items():
        if recorded.get(part) != answer.get(part):
            found.append(f"{name} {plain(recorded.get(part))}, here {plain(answer.get(part))}")
    shape, here = recorded.get("shape", {}), answer.get("shape", {})
    found += [f"missing {path}" for path in tops(shape.keys() - here.keys())]
    found += [f"added {path}" for path in tops(here.keys() - shape.keys())]
    for path in sorted(shape.keys() & here.keys()):
        if shape[path] != here[path]:
            found.append(f"{path or 'body'} is {shape[path]}, here {here[path]}")
    values, here = recorded.get("values", {}), answer.get("values", {})
    for place in sorted(values.keys() & here.keys()):
        if values[place] != here[place]:
            found.append(f"{place} = {json.dumps(values[place])}, here {json.dumps(here[place])}")
    return found


def plain(value):
    return value if isinstance(value, str | int) else json.dumps(value)


def tops(paths):
    """The paths without those below another one."""
    return sorted(path for path in paths if not any(path != top and below(path, top) for top in paths))


def below(path, top):
    return path.startswith((f"{top}.", f"{top}["))


@cache
def pattern(text):
    """`*` stands for any text."""
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))


def fits(text, name):
    return pattern(text).fullmatch(name) is not None


def explanations():
    return tomllib.loads((DIRECTORY / "known_differences.toml").read_text())["explained"]


def unexplained(found, entries):
    """Differences without a reason, and parts of the entries that no longer occur, as lines of text.

    `found`: the differences of each request by its name."""
    lines = []
    used = set()
    for name, differences_here in found.items():
        for difference in differences_here:
            reasons = [
                (at, request, text)
                for at, entry in enumerate(entries)
                for request in entry["requests"]
                if fits(request, name)
                for text in entry["differences"]
                if fits(text, difference)
            ]
            used.update(reasons)
            if not reasons:
                lines.append(f"{name}: {difference}")
    for at, entry in enumerate(entries):
        for request in entry["requests"]:
            for text in entry["differences"]:
                if (at, request, text) not in used:
                    lines.append(f"known_differences.toml: {request}: no longer: {text}")
    return lines
