"""The Messages API with Anthropic's own client, of which only the address is changed."""

import anthropic
import pytest

from corral import MODEL, RELIABLE_SUMS, address, user

CALCULATOR = {
    "name": "calculator",
    "description": "Evaluates an arithmetic expression",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def client():
    return anthropic.Anthropic(base_url=address(), api_key="none", max_retries=0)


def ask(content, **more):
    """The arguments of a request."""
    messages = user(content) if isinstance(content, str) else content
    return {"model": MODEL, "max_tokens": 100, "messages": messages, "extra_body": {"temperature": 0}, **more}


@pytest.mark.parametrize(("a", "b"), RELIABLE_SUMS)
def test_sums_are_right_whole_and_streamed(a, b):
    answer = client().messages.create(**ask(f"{a}+{b}="))
    assert [(block.type, block.text) for block in answer.content] == [("text", str(a + b))]
    assert answer.stop_reason == "end_turn"
    with client().messages.stream(**ask(f"{a}+{b}=")) as stream:
        assert "".join(stream.text_stream) == str(a + b)
        last = stream.get_final_message()
    assert (last.stop_reason, last.usage.output_tokens) == ("end_turn", answer.usage.output_tokens)


def test_streamed_tool_call_round_trip():
    with client().messages.stream(**ask("What is 12+7?", tools=[CALCULATOR])) as stream:
        first = stream.get_final_message()
    (call,) = first.content
    assert (first.stop_reason, call.type, call.input) == ("tool_use", "tool_use", {"expression": "12+7"})
    # A wrong result, so that the model cannot have computed it.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4711"}
    turns = [*user("What is 12+7?"), {"role": "assistant", "content": first.content}, *user([result])]
    assert client().messages.create(**ask(turns, tools=[CALCULATOR])).content[0].text == "4711"


def test_tokens_are_counted():
    counted = client().messages.count_tokens(model=MODEL, messages=user("12+7="))
    usage = client().messages.create(**ask("12+7=")).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_unknown_model_is_not_found():
    with pytest.raises(anthropic.NotFoundError) as error:
        client().messages.create(**ask("12+7=", model="large"))
    assert MODEL in error.value.message


def test_models_are_listed():
    # The list has OpenAI's form, whose members this client ignores.
    assert [model.id for model in client().models.list()] == [MODEL]
