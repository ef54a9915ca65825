"""The code of the guide: each block is a module of its own, and answers."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from corral_sdk import Request
from corral_sdk.testing import Script

GUIDE = Path(__file__).parents[3] / "docs/python.md"
CODE = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def module(code):
    made = ModuleType("app")
    exec(compile(code, GUIDE.name, "exec"), made.__dict__)
    return made


def ask(code, body):
    return Script({"12+7=": "19"}).call(module(code).handle, Request("POST", "/", body=body))


def test_first_plugin_answers_and_passes_its_tests(monkeypatch):
    app, tests = CODE[0], CODE[-1]
    assert ask(app, "12+7=").body == b"19"
    monkeypatch.setitem(sys.modules, "app", module(app))
    found = [value for name, value in vars(module(tests)).items() if name.startswith("test_")]
    assert len(found) == 2
    for test in found:
        test()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5, "max_tokens": 8, "stop": ["\n"], "instructions": None}])
def test_fields_are_read(settings):
    assert ask(CODE[1], {"prompt": "12+7=", **settings}).json() == {"text": "19"}
    refused = ask(CODE[1], {"prompt": "12+7=", "max_tokens": 4097}).json()
    assert (refused["status"], refused["code"]) == (400, "invalid-max-tokens")


def test_events_end_with_the_tokens():
    assert ask(CODE[2], "12+7=").events() == [{"text": "1"}, {"text": "9"}, {"tokens": 3}]
