"""A plugin of pytest that runs the suite of llama.cpp's server against Corral. README.md has the method and the figure.

`cases.toml` lists the tests that are not run, with the reason, and texts of the suite's own model: another model writes
others, so only their presence is checked. `passes.txt` lists the tests that llama-server passes with the demo model.
The run of all fails if fewer than `LEAST` of these pass here.
"""

import fnmatch
import os
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "cases.toml").read_text())
PASSES = set((HERE / "passes.txt").read_text().splitlines())
LEAST = 0.9
"""Of the tests that llama-server passes, and that need no other model or part of it: how many must pass here."""
RECORDING = "LLAMA_SERVER" in os.environ

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


def entry_of(test):
    """The entry of `cases.toml` for a test: None if it is run. Its name is that of `cases.toml`."""
    fits = lambda patterns: any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns)
    for entry in CASES["not-applicable"]:
        if fits(entry["tests"]) and not fits(entry.get("but", [])):
            return entry
    return None


def name_of(test):
    return test.removeprefix("unit/test_").replace(".py::", "::")


def pytest_collection_modifyitems(config, items):
    left, out = [], []
    for item in items:
        run = RECORDING or os.environ.get("RUN_ALL") or entry_of(name_of(item.nodeid)) is None
        (left if run else out).append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = left


def pytest_runtest_setup(item):
    """These APIs have no seed, so at the suite's temperature some answers would be empty."""
    without_seed = name_of(item.nodeid).startswith(("compat_anthropic::", "compat_oai_responses::"))
    os.environ["CORRAL_TEMPERATURE"] = "0" if without_seed else ""


passed = set()


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        passed.add(name_of(report.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if RECORDING:
        (HERE / "passes.txt").write_text("".join(f"{test}\n" for test in sorted(passed)))
        return
    kinds = {test: (entry_of(test) or {"kind": "run"})["kind"] for test in PASSES}
    count = lambda *of: sum(kind in of for kind in kinds.values())
    counted, both = count("run", "missing"), len(PASSES & passed)
    share = both / counted
    print(f"\nllama-server passes {len(PASSES)} tests with the demo model: {count('part')} of other parts,")
    print(f"{count('model')} that need another model, and {counted} more, of which {both} pass here: {share:.1%}")
    whole = session.config.args == ["unit"]
    if whole and share < LEAST:
        print(f"expected {LEAST:.0%}")
        session.exitstatus = 1
