"""Tools: definitions, calls, and results."""

import json

import openai
import pytest

from corral import MODEL, RELIABLE_SUMS, chat, client, token, user
from formats import fits


def tool(name, description, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


CALCULATOR = tool("calculator", "Evaluates an arithmetic expression", expression={"type": "string"})
WEATHER = tool(
    "weather", "Says how the weather is", city={"type": "string", "maxLength": 10}, unit={"enum": ["C", "F"]}
)


def assembled(chunks):
    """The calls, text and finish reason assembled from the deltas of a stream."""
    calls, text, reason = [], "", None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                if delta.index == len(calls):
                    assert delta.id and delta.type == "function", "the first delta of a call says which"
                    calls.append({"id": delta.id, "name": delta.function.name, "arguments": ""})
                else:
                    assert delta.index == len(calls) - 1, "one call after the other"
                    assert delta.id in (None, calls[-1]["id"])
                calls[-1]["arguments"] += delta.function.arguments or ""
    return calls, text, reason


def whole(answer):
    """The same for a whole response."""
    choice = answer.choices[0]
    calls = [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for call in choice.message.tool_calls or []
    ]
    return calls, choice.message.content or "", choice.finish_reason


def ask(messages, stream=False, **more):
    answer = chat(messages, stream=stream, **more)
    return assembled(answer) if stream else whole(answer)


def check(calls, reason="tool_calls"):
    """Checks the calls of the tools above and the finish reason."""
    assert reason == "tool_calls"
    assert len({call["id"] for call in calls}) == len(calls)
    known = {one["function"]["name"]: one["function"]["parameters"] for one in [CALCULATOR, WEATHER]}
    for call in calls:
        fits(json.loads(call["arguments"]), known[call["name"]])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, "auto", "required", {"type": "function", "function": {"name": "calculator"}}])
def test_calculator_is_called(stream, choice):
    more = {"tool_choice": choice} if choice else {}
    calls, text, reason = ask("What is 12+7?", stream, tools=[CALCULATOR], **more)
    check(calls, reason)
    (call,) = calls
    assert json.loads(call["arguments"]) == {"expression": "12+7"}
    assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_tool_call_round_trip_gives_right_sum(stream):
    for a, b in RELIABLE_SUMS:
        messages = user(f"What is {a}+{b}?")
        calls, _, reason = ask(messages, stream, tools=[CALCULATOR])
        check(calls, reason)
        (call,) = calls
        left, right = json.loads(call["arguments"])["expression"].split("+")
        messages.append(said(calls))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(int(left) + int(right))})
        calls, text, reason = ask(messages, stream, tools=[CALCULATOR])
        assert (calls, text, reason) == ([], str(a + b), "stop")


def said(calls):
    """The assistant message with these calls."""
    functions = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def test_client_message_can_be_sent_back():
    messages = user("What is 12+7?")
    first = chat(messages, tools=[CALCULATOR]).choices[0].message
    # A wrong result, so that the model cannot have computed it.
    messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "4711"}]
    assert chat(messages, tools=[CALCULATOR]).choices[0].message.content == "4711"


def test_client_stream_helper_assembles_tool_call():
    with client().chat.completions.stream(
        model=MODEL, messages=user("What is 12+7?"), temperature=0, tools=[CALCULATOR]
    ) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"expression": "12+7"}


@pytest.mark.parametrize("stream", [False, True])
def test_named_tool_is_always_called(stream):
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(4):
        more = {"temperature": 1, "seed": seed, "max_tokens": 200}
        calls, text, reason = ask("What is 12+7?", stream, tools=[CALCULATOR, WEATHER], tool_choice=named, **more)
        check(calls, reason)
        assert {call["name"] for call in calls} == {"weather"}
        assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_some_tool(stream):
    for seed in range(4):
        more = {"temperature": 1, "seed": seed, "max_tokens": 300, "parallel_tool_calls": False}
        calls, text, reason = ask("Hello", stream, tools=[WEATHER, CALCULATOR], tool_choice="required", **more)
        check(calls, reason)
        assert len(calls) == 1
        assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_tool_choice_none_calls_nothing(stream):
    calls, text, reason = ask("12+7=", stream, tools=[CALCULATOR], tool_choice="none")
    assert (calls, text, reason) == ([], "19", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_plain_question_is_answered(stream):
    assert ask("reverse: table", stream, tools=[CALCULATOR]) == ([], "elbat", "stop")


def without_end(stream, **more):
    """Requests calls while the model may not end its turn after the first one."""
    ends = {str(token(end)): -100 for end in ["<|im_end|>", "<|endoftext|>"]}
    tools = [CALCULATOR, WEATHER]
    return ask("What is 12+7?", stream, tools=tools, tool_choice="required", logit_bias=ends, max_tokens=300, **more)


def test_parallel_tool_calls_are_made():
    calls, _, reason = without_end(stream=False)
    assert reason == "length"
    assert len(calls) >= 2
    # The last call may be truncated.
    check(calls[:-1])
    assert json.loads(calls[0]["arguments"]) == {"expression": "12+7"}
    again, _, reason = without_end(stream=True)
    assert reason == "length"
    assert [(call["name"], call["arguments"]) for call in again] == [
        (call["name"], call["arguments"]) for call in calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls_can_be_disabled(stream):
    calls, text, reason = without_end(stream, parallel_tool_calls=False)
    check(calls, reason)
    assert (len(calls), text) == (1, "")


def test_results_match_parallel_calls():
    calls = [
        {"id": f"call_{number}", "name": "calculator", "arguments": json.dumps({"expression": text})}
        for number, text in enumerate(["12+7", "20+22"])
    ]
    messages = [*user("What is 12+7?"), said(calls)]
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "4711"} for call in calls]
    assert ask(messages, tools=[CALCULATOR])[1] == "4711"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": "calculator"}, "tools"),
        ({"tools": [CALCULATOR], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_invalid_tools_are_refused(more, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat("12+7=", **more)
    assert error.value.param.startswith(param), error.value
