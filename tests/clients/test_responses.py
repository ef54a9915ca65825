"""The Responses API, without stored state."""

import json

import openai
import pytest

from corral import MODEL, RELIABLE_SUMS, client
from formats import fits

CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Evaluates an arithmetic expression",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    "strict": True,
}


def respond(content, **more):
    return client().responses.create(model=MODEL, input=content, temperature=0, **more)


@pytest.mark.parametrize(("a", "b"), RELIABLE_SUMS)
def test_sums_are_right(a, b):
    answer = respond(f"{a}+{b}=")
    assert answer.output_text == str(a + b)
    assert (answer.object, answer.status, answer.model) == ("response", "completed", MODEL)
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert answer.usage.input_tokens + answer.usage.output_tokens == answer.usage.total_tokens
    assert answer.usage.input_tokens_details.cached_tokens >= 0


def test_whole_conversation_is_accepted():
    turns = [
        {"role": "user", "content": "3+4="},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": [{"type": "input_text", "text": "12+7="}]},
    ]
    assert respond(turns, instructions="You are a calculator.").output_text == "19"


def test_stream_ends_with_whole_response():
    events = list(respond("repeat: Blue owls, 7!", stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert text == done.text == events[-1].response.output_text == "Blue owls, 7!"
    order = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    places = [kinds.index(kind) for kind in order]
    assert places == sorted(places)


def test_client_stream_helper_reads_it():
    with client().responses.stream(model=MODEL, input="12+7=", temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "19"


def test_truncated_response_says_so():
    answer = respond("repeat: Blue owls, 7!", max_output_tokens=4)
    assert (answer.output_text, answer.status) == ("Blue", "incomplete")
    assert answer.incomplete_details.reason == "max_output_tokens"
    *_, last = respond("repeat: Blue owls, 7!", max_output_tokens=4, stream=True)
    assert last.type == "response.incomplete"


def test_response_follows_schema():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "card", "strict": True, "schema": schema}}
    answer = respond("Ada is 36 years old", text=form)
    fits(json.loads(answer.output_text), schema)


def test_tool_call_round_trip():
    first = respond("What is 12+7?", tools=[CALCULATOR])
    (call,) = first.output
    assert (call.type, call.name) == ("function_call", "calculator")
    assert json.loads(call.arguments) == {"expression": "12+7"}
    turns = [
        {"role": "user", "content": "What is 12+7?"},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "4711"},
    ]
    assert respond(turns, tools=[CALCULATOR]).output_text == "4711"


def test_streamed_tool_call_equals_whole_one():
    events = list(respond("What is 12+7?", tools=[CALCULATOR], stream=True))
    text = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    (call,) = events[-1].response.output
    assert json.loads(text) == json.loads(call.arguments) == {"expression": "12+7"}


@pytest.mark.parametrize(
    "more",
    [{"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "conv_1"}],
)
def test_stored_state_is_refused_by_name(more):
    (name,) = more
    with pytest.raises(openai.BadRequestError) as error:
        respond("12+7=", **more)
    assert error.value.param == name
    assert name in error.value.message


def test_responses_are_not_stored():
    answer = respond("12+7=", store=False)
    with pytest.raises(openai.NotFoundError):
        client().responses.retrieve(answer.id)


def test_namespaced_tool_is_called():
    function = {**CALCULATOR, "strict": False}
    namespace = {"type": "namespace", "name": "sums", "description": "", "tools": [function]}
    # The demo model calls nothing but `calculator`, so the call is forced.
    choice = {"type": "function", "namespace": "sums", "name": "calculator"}
    (call,) = respond("What is 12+7?", extra_body={"tools": [namespace], "tool_choice": choice}).output
    assert (call.type, call.name, call.namespace) == ("function_call", "calculator", "sums")


def test_custom_tool_is_called():
    tool = {"type": "custom", "name": "patch", "description": "Applies a patch"}
    choice = {"type": "custom", "name": "patch"}
    answer = respond("12+7=", extra_body={"tools": [tool], "tool_choice": choice}, max_output_tokens=400)
    call = answer.output[0]
    assert (call.type, call.name) == ("custom_tool_call", "patch")


def test_message_has_logprobs():
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (message,) = respond("12+7=", **more).output
    entries = message.content[0].logprobs
    assert [entry.token for entry in entries] == ["1", "9"]
    # The answer is greedy, so each token is the most likely one.
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
    deltas = [event for event in respond("12+7=", stream=True, **more) if event.type == "response.output_text.delta"]
    assert [entry.token for event in deltas for entry in event.logprobs] == ["1", "9"]


def test_counted_tokens_are_those_of_the_prompt():
    counted = client().responses.input_tokens.count(model=MODEL, input="12+7=")
    assert counted.input_tokens == respond("12+7=").usage.input_tokens
