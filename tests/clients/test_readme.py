"""The examples of the plugin's README work."""

import contextlib
import io
import json
import re

from corral import ROOT, address, post

README = (ROOT / "plugins/openai/README.md").read_text()
THERE = "http://127.0.0.1:8080"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


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
