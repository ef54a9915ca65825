"""The requests of `differential/`, whose answers by llama.cpp's server are recorded: Corral's are the same, or the
difference is explained."""

import pytest

from corral import address
from differential import compare, requests
from differential.answers import reduce


def test_each_difference_from_llama_server_is_explained():
    all_requests, recorded = requests.read("requests"), requests.read("recorded")
    assert len(all_requests) >= 250
    assert all_requests.keys() == recorded.keys(), "run differential/record.py after a change of the requests"
    found = {}
    for name, request in all_requests.items():
        answer = reduce(*requests.send(address(), request), free=request.get("free", False))
        found[name] = compare.differences(recorded[name], answer)
    lines = compare.unexplained(found, compare.explanations())
    assert not lines, "\n".join(lines)


ANSWER = {"status": 200, "type": "application/json", "shape": {"a": "string"}, "values": {"a": "x"}}


@pytest.mark.offline
@pytest.mark.parametrize(
    "change, difference",
    [
        ({"status": 400}, "status 200, here 400"),
        ({"type": "text/plain"}, "type application/json, here text/plain"),
        ({"shape": {}}, "missing a"),
        ({"shape": {"a": "string", "b": "list", "b[]": "null"}}, "added b"),
        ({"shape": {"a": "null"}}, "a is string, here null"),
        ({"values": {"a": "y"}}, 'a = "x", here "y"'),
    ],
)
def test_difference_fails_without_explanation(change, difference):
    found = {"chat/x": compare.differences(ANSWER, {**ANSWER, **change})}
    assert found == {"chat/x": [difference]}
    assert compare.unexplained(found, []) == [f"chat/x: {difference}"]
    entry = {"reason": "so", "requests": ["chat/*"], "differences": [difference]}
    assert compare.unexplained(found, [entry]) == []


@pytest.mark.offline
def test_explanation_fails_without_difference():
    assert compare.differences(ANSWER, ANSWER) == []
    entry = {"reason": "so", "requests": ["chat/*"], "differences": ["missing a"]}
    lines = compare.unexplained({"chat/x": []}, [entry])
    assert lines == ["known_differences.toml: chat/*: no longer: missing a"]
