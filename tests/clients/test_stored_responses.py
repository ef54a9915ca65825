"""Stored responses, with the official client."""

import openai
import pytest

from corral import MODEL, computed_tokens, environment
from corral import client as client_of

STORED = "CORRAL_STORED_URL"
ADMIN = "CORRAL_STORED_ADMIN"
"""The server whose deployment stores responses."""


def client(tenant=0):
    return client_of(STORED, environment("CORRAL_STORED_KEYS").split()[tenant])


def respond(content, tenant=0, **more):
    return client(tenant).responses.create(model=MODEL, input=content, temperature=0, **more)


INSTRUCTIONS = {"role": "developer", "content": "Be brief. " * 50}


def test_conversation_continues_from_the_prefix_cache():
    first, computed = computed_tokens(lambda: respond([INSTRUCTIONS, {"role": "user", "content": "3+4="}]), ADMIN)
    assert (first.output_text, first.store, first.previous_response_id) == ("7", True, None)
    assert computed > 500
    ask = {"previous_response_id": first.id}
    second, computed = computed_tokens(lambda: respond("12+7=", **ask), ADMIN)
    assert (second.output_text, second.previous_response_id) == ("19", first.id)
    assert second.usage.input_tokens > 500
    assert second.usage.input_tokens_details.cached_tokens > 500
    assert computed < 60
    counted = client().responses.input_tokens.count(model=MODEL, input="12+7=", **ask)
    assert counted.input_tokens == second.usage.input_tokens


def test_stored_response_is_retrieved_and_deleted():
    answer = respond("12+7=")
    again = client().responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    client().responses.delete(answer.id)
    for missing in [client().responses.retrieve, client().responses.delete]:
        with pytest.raises(openai.NotFoundError) as error:
            missing(answer.id)
        assert error.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        respond("3+4=", previous_response_id=answer.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")


def test_input_items_have_the_whole_conversation():
    first = respond("3+4=")
    second = respond([{"role": "user", "content": "12+7="}], previous_response_id=first.id)
    listed = client().responses.input_items.list(second.id, order="asc")
    assert [(item.type, item.role, item.content[0].text) for item in listed] == [
        ("message", "user", "3+4="),
        ("message", "assistant", "7"),
        ("message", "user", "12+7="),
    ]
    # The client reads page after page.
    pages = client().responses.input_items.list(second.id, limit=1)
    assert [item.content[0].text for item in pages] == ["12+7=", "7", "3+4="]


def test_streamed_tool_call_continues():
    calculator = {
        "type": "function",
        "name": "calculator",
        "description": "Evaluates an arithmetic expression",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        "strict": False,
    }
    *_, last = respond("What is 12+7?", tools=[calculator], stream=True)
    (call,) = last.response.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4711"}
    answer = respond([result], tools=[calculator], previous_response_id=last.response.id)
    assert answer.output_text == "4711"


def test_tenants_do_not_see_each_others_responses():
    answer = respond("12+7=", tenant=0)
    with pytest.raises(openai.NotFoundError):
        client(1).responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client(1).responses.delete(answer.id)
    with pytest.raises(openai.BadRequestError):
        respond("3+4=", tenant=1, previous_response_id=answer.id)
    assert client(0).responses.retrieve(answer.id).output_text == "19"


def test_response_is_not_stored_if_the_request_says_so():
    answer = respond("12+7=", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client().responses.retrieve(answer.id)
