"""JSON mode and JSON schemas."""

import asyncio
import json
from collections import Counter

import jsonschema
import openai
import pydantic
import pytest

import schemas
from corral import MODEL, async_client, chat, client, streamed, token, user
from formats import CHECKER, fits

CARD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def held_to(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("form", [{"type": "json_object"}, held_to(CARD)])
@pytest.mark.parametrize("stream", [False, True])
def test_valid_output_stays_unchanged(form, stream):
    answer = chat("Ada is 36 years old", response_format=form, stream=stream)
    if stream:
        texts, reasons = streamed(answer)
        assert (texts, reasons) == ({0: '{"name":"Ada","age":36}'}, {0: "stop"})
    else:
        assert answer.choices[0].message.content == '{"name":"Ada","age":36}'
        assert answer.choices[0].finish_reason == "stop"


def test_text_format_is_no_constraint():
    assert chat("12+7=", response_format={"type": "text"}).choices[0].message.content == "19"


@pytest.mark.parametrize("seed", range(8))
def test_schema_forces_unlikely_output(seed):
    more = {"temperature": 1.5, "seed": seed, "max_tokens": 300}
    answer = chat("12+7=", response_format=held_to(CARD), **more).choices[0]
    assert answer.finish_reason == "stop"
    fits(json.loads(answer.message.content), CARD)
    answer = chat("12+7=", response_format={"type": "json_object"}, **more).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


def test_schema_holds_for_every_choice():
    answer = chat("12+7=", response_format=held_to(CARD), n=4, temperature=1.5, seed=1, max_tokens=300)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    for text in texts:
        fits(json.loads(text), CARD)


@pytest.mark.parametrize("name", sorted(CHECKER.checkers))
def test_string_formats_are_followed(name):
    schema = {
        "type": "object",
        "properties": {"value": {"type": "string", "format": name}},
        "required": ["value"],
        "additionalProperties": False,
    }
    # Biases that end unbounded values, so that every response is complete.
    soon = {'"': 100, "@": 50, ":": 50, **{str(digit): -20 for digit in range(10)}}
    soon = {str(token(text)): bias for text, bias in soon.items()}
    for seed in range(8):
        bias = soon if seed % 2 else None
        more = {"temperature": 2, "seed": seed, "max_tokens": 400, "logit_bias": bias}
        answer = chat("12+7=", response_format=held_to(schema), **more).choices[0]
        assert answer.finish_reason == "stop" or not bias
        if answer.finish_reason == "stop":
            fits(json.loads(answer.message.content), schema)


class Card(pydantic.BaseModel):
    name: str
    age: int


def test_client_parser_accepts_output():
    answer = client().chat.completions.parse(
        model=MODEL, messages=user("Ada is 36 years old"), temperature=0, response_format=Card
    )
    assert answer.choices[0].message.parsed == Card(name="Ada", age=36)


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "yaml"}, "yaml"),
        ({"type": "json_schema"}, "json_schema"),
        (held_to({"type": "object", "properties": {"a": {"type": "strin"}}}), "strin"),
        (held_to({"type": "string", "not": {"pattern": "x"}}), "at /not: the keyword not is not supported"),
    ],
)
def test_invalid_response_format_is_refused(form, place):
    with pytest.raises(openai.BadRequestError) as error:
        chat("12+7=", response_format=form)
    assert error.value.param.startswith("response_format")
    assert place in error.value.message


def test_random_schemas_are_followed():
    """Sixteen at a time; every third one streamed; some sampled, some greedy."""
    ends = asyncio.run(ask_all(range(500)))
    assert ends["stop"] + ends["length"] == 500
    # Few reach the token limit.
    assert ends["stop"] >= 490, ends


async def ask_all(seeds):
    gate, ends = asyncio.Semaphore(16), Counter()
    async with async_client() as asking, asyncio.TaskGroup() as group:

        async def one(seed):
            async with gate:
                ends[await ask(asking, seed)] += 1

        for seed in seeds:
            group.create_task(one(seed))
    return ends


async def ask(asking, seed):
    """Requests output for one schema and checks it; returns the finish reason."""
    schema = schemas.schema(seed)
    jsonschema.Draft202012Validator.check_schema(schema)
    request = {
        "model": MODEL,
        "messages": user(["Ada is 36 years old", "12+7=", "Hello"][seed % 3]),
        "response_format": held_to(schema),
        "temperature": [0, 0.7, 1.5, 2][seed % 4],
        "seed": seed,
        "max_tokens": 1000,
    }
    if seed % 3 == 0:
        text, end = "", None
        async for chunk in await asking.chat.completions.create(stream=True, **request):
            text += chunk.choices[0].delta.content or ""
            end = chunk.choices[0].finish_reason or end
    else:
        choice = (await asking.chat.completions.create(**request)).choices[0]
        text, end = choice.message.content, choice.finish_reason
    if end == "stop":
        try:
            fits(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"the answer to schema {seed}, {schema}, is {text!r}: {error}") from None
    return end
