"""Anthropic's Messages API, over plain HTTP."""

import json

import pytest

from corral import MODEL, RELIABLE_SUMS, events, in_chunks, post, user


def ask(content, **more):
    messages = user(content) if isinstance(content, str) else content
    return {"model": MODEL, "max_tokens": 100, "temperature": 0, "messages": messages, **more}


def message(content, **more):
    status, _, value = post("/v1/messages", ask(content, **more))
    assert status == 200, value
    return value


@pytest.mark.parametrize(("a", "b"), RELIABLE_SUMS)
def test_sums_are_right(a, b):
    value = message(f"{a}+{b}=")
    assert value["content"] == [{"type": "text", "text": str(a + b)}]
    assert (value["type"], value["role"], value["model"]) == ("message", "assistant", MODEL)
    assert (value["stop_reason"], value["stop_sequence"]) == ("end_turn", None)
    assert value["usage"]["input_tokens"] > 0
    assert value["usage"]["output_tokens"] > 0


def test_system_prompt_and_text_blocks():
    blocks = user([{"type": "text", "text": "12+7="}])
    assert message(blocks, system="You are a calculator.")["content"][0]["text"] == "19"
    assert message(blocks, system=[{"type": "text", "text": "Be brief."}])["content"][0]["text"] == "19"


def test_stop_reason_is_reported():
    value = message("repeat: Blue owls, 7!", stop_sequences=["owls"])
    assert (value["content"][0]["text"], value["stop_reason"]) == ("Blue ", "stop_sequence")
    assert value["stop_sequence"] == "owls"
    value = message("repeat: Blue owls, 7!", max_tokens=4)
    assert (value["content"][0]["text"], value["stop_reason"]) == ("Blue", "max_tokens")


def test_stream_events_are_in_order():
    def stream():
        asked = ask("repeat: Blue owls, 7!", stream=True)
        return [(name, json.loads(data)) for name, data in events("/v1/messages", asked)]

    found = in_chunks(stream, lambda found: sum(name == "content_block_delta" for name, _ in found))
    assert all(name == data["type"] for name, data in found)
    kinds = [name for name, _ in found if name != "ping"]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert text == "Blue owls, 7!"
    (last,) = [data for name, data in found if name == "message_delta"]
    assert last["delta"]["stop_reason"] == "end_turn"
    assert last["usage"]["output_tokens"] > 0


CALCULATOR = {
    "name": "calculator",
    "description": "Evaluates an arithmetic expression",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def test_tool_call_round_trip():
    value = message("What is 12+7?", tools=[CALCULATOR])
    (call,) = value["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "calculator", {"expression": "12+7"})
    assert value["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "4711"}
    turns = [*user("What is 12+7?"), {"role": "assistant", "content": [call]}, *user([result])]
    assert message(turns, tools=[CALCULATOR])["content"] == [{"type": "text", "text": "4711"}]


def test_streamed_tool_call_equals_whole_one():
    found = events("/v1/messages", ask("What is 12+7?", tools=[CALCULATOR], stream=True))
    deltas = [json.loads(data)["delta"] for name, data in found if name == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"input_json_delta"}
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == {"expression": "12+7"}


@pytest.mark.parametrize("more", [{"max_tokens": None}, {"messages": 5}, {"temperature": "hot"}])
def test_invalid_fields_are_refused_by_name(more):
    (name,) = more
    status, _, value = post("/v1/messages", ask("12+7=", **more))
    assert status == 400, value
    assert value["error"]["type"] == "invalid_request_error"
    assert name in value["error"]["message"]


def test_counted_tokens_are_those_of_the_prompt():
    asked = ask("What is 12+7?", tools=[CALCULATOR], system="Be brief.")
    usage = message(**{"content": asked["messages"], "tools": [CALCULATOR], "system": "Be brief."})["usage"]
    status, _, counted = post("/v1/messages/count_tokens", asked)
    assert status == 200, counted
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_answer_continues_last_message_of_assistant():
    turns = [*user("repeat: Blue owls, 7!"), {"role": "assistant", "content": "Blue"}]
    assert message(turns)["content"] == [{"type": "text", "text": " owls, 7!"}]


def test_server_tool_beside_own_tools_is_named():
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    status, headers, value = post("/v1/messages", ask("What is 12+7?", tools=[CALCULATOR, search]))
    assert status == 200, value
    assert "web_search" in headers["x-corral-ignored"]
    assert value["content"][0]["name"] == "calculator"
    status, _, value = post("/v1/messages", ask("What is 12+7?", tools=[search]))
    assert status == 400, value


def test_billing_header_keeps_prefix_cached():
    def answer(version):
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={version}; cch={version};"}
        text = {"type": "text", "text": "The billing header is not a part of this prompt. " * 4}
        return message("12+7=", system=[header, text])["usage"]

    first, second = answer("1.2.3"), answer("9.8.7")
    assert second["input_tokens"] < 16 < first["input_tokens"] + first["cache_read_input_tokens"]
