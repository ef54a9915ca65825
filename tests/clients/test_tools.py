"""Tools: offered, called, and their results handed back."""

import json

import openai
import pytest

from corral import MODEL, SURE, chat, client, token, user
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
    """The calls, the text and the reason of a stream, put together from its deltas."""
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
    """The same of a whole answer."""
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
    """Checks calls of the tools above, and why the answer ended."""
    assert reason == "tool_calls"
    assert len({call["id"] for call in calls}) == len(calls)
    known = {one["function"]["name"]: one["function"]["parameters"] for one in [CALCULATOR, WEATHER]}
    for call in calls:
        fits(json.loads(call["arguments"]), known[call["name"]])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, "auto", "required", {"type": "function", "function": {"name": "calculator"}}])
def test_the_calculator_is_called(stream, choice):
    more = {"tool_choice": choice} if choice else {}
    calls, text, reason = ask("What is 12+7?", stream, tools=[CALCULATOR], **more)
    check(calls, reason)
    (call,) = calls
    assert json.loads(call["arguments"]) == {"expression": "12+7"}
    assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_goes_round_and_comes_back_as_the_right_sum(stream):
    for a, b in SURE:
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
    """The assistant's message with these calls."""
    functions = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def test_the_clients_own_message_can_be_sent_back():
    messages = user("What is 12+7?")
    first = chat(messages, tools=[CALCULATOR]).choices[0].message
    # A wrong result, so that the model can't have worked it out.
    messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "4711"}]
    assert chat(messages, tools=[CALCULATOR]).choices[0].message.content == "4711"


def test_the_clients_own_reader_of_streams_puts_a_call_together():
    with client().chat.completions.stream(
        model=MODEL, messages=user("What is 12+7?"), temperature=0, tools=[CALCULATOR]
    ) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"expression": "12+7"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_whatever_is_asked(stream):
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(4):
        more = {"temperature": 1, "seed": seed, "max_tokens": 200}
        calls, text, reason = ask("What is 12+7?", stream, tools=[CALCULATOR, WEATHER], tool_choice=named, **more)
        check(calls, reason)
        assert {call["name"] for call in calls} == {"weather"}
        assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_some_tool_is_called_where_one_has_to_be(stream):
    for seed in range(4):
        more = {"temperature": 1, "seed": seed, "max_tokens": 300, "parallel_tool_calls": False}
        calls, text, reason = ask("Hello", stream, tools=[WEATHER, CALCULATOR], tool_choice="required", **more)
        check(calls, reason)
        assert len(calls) == 1
        assert text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_no_tool_is_called_where_none_may_be(stream):
    calls, text, reason = ask("12+7=", stream, tools=[CALCULATOR], tool_choice="none")
    assert (calls, text, reason) == ([], "19", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_what_needs_no_tool_is_answered(stream):
    assert ask("reverse: table", stream, tools=[CALCULATOR]) == ([], "elbat", "stop")


def without_end(stream, **more):
    """Asks for calls of a model that may not end its turn after the first one by itself."""
    ends = {str(token(end)): -100 for end in ["<|im_end|>", "<|endoftext|>"]}
    tools = [CALCULATOR, WEATHER]
    return ask("What is 12+7?", stream, tools=tools, tool_choice="required", logit_bias=ends, max_tokens=300, **more)


def test_several_calls_are_made_where_they_may_be():
    calls, _, reason = without_end(stream=False)
    assert reason == "length"
    assert len(calls) >= 2
    # The last one may be cut off.
    check(calls[:-1])
    assert json.loads(calls[0]["arguments"]) == {"expression": "12+7"}
    again, _, reason = without_end(stream=True)
    assert reason == "length"
    assert [(call["name"], call["arguments"]) for call in again] == [
        (call["name"], call["arguments"]) for call in calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_is_made_where_no_more_may_be(stream):
    calls, text, reason = without_end(stream, parallel_tool_calls=False)
    check(calls, reason)
    assert (len(calls), text) == (1, "")


def test_several_calls_of_one_message_have_their_results():
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
def test_wrong_tools_are_refused(more, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat("12+7=", **more)
    assert error.value.param.startswith(param), error.value
