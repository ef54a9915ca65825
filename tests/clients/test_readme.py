"""The examples of the plugin's README work."""

import contextlib
import io
import json
import re

import pytest

from corral import ROOT, address, post

README = (ROOT / "plugins/openai/README.md").read_text()
THERE = "http://127.0.0.1:8080"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


CLIENTS = ROOT / "tests/clients"
SUITES = {**{file.name: file for file in CLIENTS.rglob("*.py")}, **{file.name: file for file in CLIENTS.glob("*.mjs")}}


def installed():
    """The versions of the packages that the suites and agents are installed from; Python's names and Node's."""
    versions = {}
    for file in ["requirements.txt", "openai_2/requirements.txt", "agents/aider.txt", "agents/lm-eval.txt"]:
        for line in (CLIENTS / file).read_text().splitlines():
            if "==" in line:
                name, version = line.split("==")
                versions.setdefault((name, "Python"), version)
    for file in ["package-lock.json", "agents/package-lock.json"]:
        for path, package in json.loads((CLIENTS / file).read_text())["packages"].items():
            versions[(path.removeprefix("node_modules/"), "Node")] = package.get("version")
    return versions


@pytest.mark.offline
def test_table_has_the_versions_that_are_installed():
    versions = installed()
    table = README.split("\n## Clients\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) >= 24
    for client, version, suites, _ in rows:
        name = client.split("`")[1]
        is_node = client.endswith("Node") or name == "ai" or name.startswith("@")
        assert versions[(name, "Node" if is_node else "Python")] == version, client
        package = name.split("[")[0]
        for suite in re.findall(r"`([^`]+)`", suites):
            file = ROOT / "tests/tests/agents.rs" if suite == "agents.rs" else SUITES[suite]
            text = file.read_text()
            words = {"openai": "corral", "ai": "installed"}.get(package, package.split("/")[0].strip("@").split("-")[0])
            assert words in text, f"{suite} does not use {name}"
    second = re.search(r"`openai` \(([\d.]+)\)", table).group(1)
    assert f"openai=={second}" in (CLIENTS / "openai_2/requirements.txt").read_text().splitlines()


def test_curl_command_works():
    (block,) = [block for block in blocks("sh") if block.startswith("curl")]
    path, body = re.fullmatch(rf"curl -s {THERE}(\S+) -d '(.*)'\n", block).groups()
    status, _, value = post(path, json.loads(body))
    assert status == 200
    assert value["choices"][0]["message"]["content"] == "19"


def test_python_example_works():
    (block,) = [block for block in blocks("python") if "from openai " in block]
    assert THERE in block
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(block.replace(THERE, address()), {})
    assert said.getvalue() == "19\n"
