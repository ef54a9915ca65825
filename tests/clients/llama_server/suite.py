"""A plugin of pytest that runs the suite of llama.cpp's server against Corral.

`cases.toml` lists the tests that do not apply, with the reason, and texts of the suite's own model: another model writes
others, so only their presence is checked.
"""

import fnmatch
import os
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "cases.toml").read_text())

os.environ["LLAMA_SERVER_BIN_PATH"] = str(HERE / "llama-server")
sys.path.append(str(HERE))

import utils  # noqa: E402  the suite's own module, in the current directory

original_match = utils.match_regex


def match_regex(regex, text):
    """As the suite's, but any text will do where it expects its own model's."""
    if regex in CASES["texts-of-its-model"]:
        return isinstance(text, str)
    return original_match(regex, text)


utils.match_regex = match_regex
# The presets are models to download; here all are the demo model.
utils.ServerPreset.load_all = staticmethod(lambda: None)


def reason(test):
    """Why a test does not apply: None if it does. Its name is that of `cases.toml`."""
    for entry in CASES["not-applicable"]:
        for pattern in entry["tests"]:
            if fnmatch.fnmatchcase(test, pattern):
                return entry["reason"]
    return None


def pytest_collection_modifyitems(config, items):
    left, out = [], []
    for item in items:
        test = item.nodeid.removeprefix("unit/test_").replace(".py::", "::")
        why = reason(test)
        if why is None or os.environ.get("RUN_ALL"):
            left.append(item)
        else:
            out.append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = left
