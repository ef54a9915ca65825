"""The SDK against the scripted host."""

import asyncio
import random

import pytest

from corral_sdk import (
    ContextFull,
    Deadline,
    Invalid,
    Model,
    NotFound,
    Penalties,
    Problem,
    Refused,
    Request,
    Response,
    choose,
    configuration,
    fields,
    greedy,
    handler,
    log_softmax,
    next_many,
    softmax,
    top_p,
)
from corral_sdk.errors import from_host
from corral_sdk.http import around
from corral_sdk.testing import END, Script


def script(**more):
    return Script({"12+7=": "19"}, **more)


async def ask(**settings):
    model = await Model.open()
    return await model.sequence("12+7=").generate(8, **settings).text()


def test_generation_has_text_and_outcome():
    async def main():
        model = await Model.open()
        sequence = model.sequence("12+7=")
        generation = sequence.generate(8)
        texts = [chunk.text async for chunk in generation]
        outcome = await generation.outcome()
        return texts, outcome.finish.name, outcome.generated_tokens, model.detokenize(sequence.tokens())

    assert script().run(main()) == (["1", "9"], "END", 3, "12+7=19")


def test_settings_reach_the_host_in_order():
    host = script()
    settings = dict(temperature=0.5, top_k=3, stop=["\n"], seed=7, penalties=Penalties(repeat=1.5))
    assert host.run(ask(**settings)) == "19"
    assert host.generations[0].settings == [
        ("max_tokens", 8),
        ("penalties", (64, 1.5, 0.0, 0.0)),
        ("temperature", 0.5),
        ("top_k", 3),
        ("seed", 7),
        ("stop", "\n"),
    ]


def test_stop_and_length_end_a_generation():
    async def main(**settings):
        model = await Model.open()
        generation = model.sequence("12+7=").generate(**settings)
        text = await generation.text()
        return text, (await generation.outcome()).finish.name

    assert script().run(main(max_tokens=1)) == ("1", "LENGTH")
    assert script().run(main(max_tokens=9, stop="9")) == ("1", "STOP")


def test_fork_computes_the_prompt_once():
    async def main():
        model = await Model.open()
        sequence = model.sequence("12+7=")
        first = await sequence.fork().generate(8).text()
        return first, await sequence.fork().generate(8).text()

    host = script()
    assert host.run(main()) == ("19", "19")
    # Five tokens of the prompt, its last one again, and two tokens of each answer.
    assert host.computed == 5 + 1 + 4


def test_plugin_chooses_tokens():
    async def main():
        model = await Model.open()
        sequence, text = model.sequence("12+7="), []
        while (token := greedy(await sequence.next(2))) != END:
            text.append(token)
            sequence.append([token])
        both = await next_many([model.sequence("12+7="), model.sequence("12+7=1")])
        return bytes(text).decode(), [chr(greedy(one)) for one in both]

    assert script().run(main()) == ("19", ["1", "9"])


def test_errors_have_status_and_code():
    cases = {
        "Error_Invalid": ("x",),
        "Error_NotFound": ("x",),
        "Error_NotGranted": ("x",),
        "Error_Failed": ("x",),
    }
    found = [from_host(type(name, (), {"value": value[0]})()) for name, value in cases.items()]
    assert [error.status for error in found] == [400, 404, 403, 500]
    limits = type("Limits", (), {"needed": 9, "limit": 8})
    refusal = type("Refusal", (), {"reason": "full", "retry_after_ms": 1500})
    full = from_host(type("Error_ContextFull", (), {"value": limits})())
    refused = from_host(type("Error_Refused", (), {"value": refusal})())
    assert isinstance(full, ContextFull) and (full.needed, full.status) == (9, 400)
    assert isinstance(refused, Refused) and refused.headers == [("retry-after", "2")]
    assert from_host(type("Error_Deadline", (), {})()).status == 504
    assert from_host(type("Error_Cancelled", (), {})()).status == 499


def test_handler_answers_and_maps_errors():
    @handler
    async def handle(request: Request) -> Response:
        body = await request.json()
        if body.get("fail"):
            raise ValueError("oops")
        return Response.json({"text": await ask(), "path": request.path, "max": request.query["max"]})

    post = lambda body: script().call(handle, Request("POST", "/a?max=5", body=body))
    assert post({}).json() == {"text": "19", "path": "/a", "max": "5"}
    for body, status, code in [
        ("x", 400, "invalid-body"),
        (b"\xff", 400, "invalid-body"),
        ("[" * 100_000, 400, "invalid-body"),
        (b" " * 2_000_000, 413, "body-too-large"),
        ({"fail": True}, 500, "plugin-failed"),
    ]:
        answered = post(body)
        assert (answered.status, answered.json()["code"]) == (status, code)
        assert answered.headers["content-type"] == "application/problem+json"
    failing = Script({"12+7=": Deadline()})
    assert failing.call(handle, Request("POST", "/?max=1", body={})).status == 504


def test_fields_are_checked():
    @handler
    async def handle(request: Request) -> Response:
        body = await request.fields(
            text=fields.string(),
            count=fields.integer(8, least=1, most=64),
            heat=fields.number(1.0, least=0),
            loud=fields.boolean(False),
            tags=fields.array(fields.string(), ["a"], least=1, most=2),
            any=fields.value(None),
        )
        return Response.json(vars(body))

    post = lambda body: script().call(handle, Request("POST", "/", body=body))
    rest = {"count": 8, "heat": 1.0, "loud": False, "tags": ["a"], "any": None}
    assert post({"text": "x", "count": None}).json() == {"text": "x", **rest}
    everything = {"text": "", "count": 64, "heat": 0.5, "loud": True, "tags": ["b", "c"], "any": [{}]}
    assert post(everything).json() == everything
    for body, code, detail in [
        ("5", "invalid-body", "the body is 5; expected an object"),
        ("[1]", "invalid-body", "the body is an array of 1 items; expected an object"),
        ({}, "invalid-text", "`text` is missing; expected a string"),
        ({"text": None}, "invalid-text", "`text` is null; expected a string"),
        ({"text": "\ud800"}, "invalid-text", '`text` is "\\ud800"; expected a string'),
        ({"text": "x", "count": 65}, "invalid-count", "`count` is 65; expected an integer from 1 to 64"),
        ({"text": "x", "count": 1.5}, "invalid-count", "`count` is 1.5; expected an integer from 1 to 64"),
        ({"text": "x", "count": True}, "invalid-count", "`count` is true; expected an integer from 1 to 64"),
        ({"text": "x", "heat": -1}, "invalid-heat", "`heat` is -1; expected a number of at least 0"),
        ('{"text": "x", "heat": NaN}', "invalid-heat", "`heat` is NaN; expected a number of at least 0"),
        ('{"text": "x", "heat": 1e999}', "invalid-heat", "`heat` is Infinity; expected a number of at least 0"),
        ({"text": "x", "loud": 1}, "invalid-loud", "`loud` is 1; expected true or false"),
        ({"text": "x", "tags": []}, "invalid-tags", "`tags` is an array of 0 items; expected an array of 1 to 2 items"),
        ({"text": "x", "tags": ["a", 5]}, "invalid-tags", "`tags[1]` is 5; expected a string"),
        ({"text": "x", "other": 1}, "invalid-body", 'there is no field "other"; expected text, count, heat, loud, tags, any'),
    ]:
        answered = post(body)
        found = answered.json()
        assert (answered.status, found["code"], found["detail"]) == (400, code, detail)


def test_path_is_all_before_the_query():
    for target, path, query in [
        ("/a?b=1&b=2&c=%20", "/a", {"b": "1", "c": " "}),
        ("//a/b", "//a/b", {}),
        ("//[", "//[", {}),
    ]:
        request = Request("GET", target)
        assert (request.path, request.query) == (path, query)


def test_events_are_written_and_end_with_errors():
    async def handle(_):
        async def values():
            yield {"n": 1}
            yield "two\rlines"
            raise Problem(409, "over", "it is over")

        return Response.events(values())

    answered = script().call(handle, Request("GET", "/"))
    assert answered.headers["content-type"] == "text/event-stream"
    first, second, last = answered.events()
    assert (first, second, last["code"]) == ({"n": 1}, "two\nlines", "over")
    answered = script().call(handle, Request("GET", "/"), disconnect_after=1)
    assert answered.events() == [{"n": 1}]


def test_text_events_end_with_the_outcome():
    async def handle(_):
        model = await Model.open()
        generation = model.sequence("12+7=").generate(8)

        async def end(events):
            await events.json({"tokens": (await generation.outcome()).generated_tokens})

        return Response.text_events(generation, lambda text: {"text": text}, end)

    answered = script().call(handle, Request("GET", "/"))
    assert answered.events() == [{"text": "1"}, {"text": "9"}, {"tokens": 3}]


def test_event_must_contain_its_text():
    assert around(lambda text: {"a": text, "b": 1}) == (b'data: {"a": ', b', "b": 1}\n\n')
    with pytest.raises(ValueError, match="contains the text"):
        around(lambda text: {"a": 1})


def test_snapshots_and_configuration():
    async def main():
        model = await Model.open()
        await model.sequence("12+7=").save("sum")
        restored = await model.restore("sum")
        text = await restored.generate(8).text()
        await model.delete_snapshot("sum")
        with pytest.raises(NotFound):
            await model.restore("sum")
        return text, configuration(), model.request_counts().max_running

    assert script(configuration={"tone": "dry"}).run(main()) == ("19", {"tone": "dry"}, 1)


def test_uncovered_prompt_and_model_are_errors():
    async def other():
        return await (await Model.open()).sequence("what?").generate(8).text()

    with pytest.raises(NotFound, match="no answer"):
        script().run(other())
    with pytest.raises(NotFound, match="no model"):
        script().run(Model.open("other"))


def test_special_tokens_need_permission():
    async def main():
        model = await Model.open()
        return model.tokenize("a<|im_end|>"), model.tokenize("a<|im_end|>", special=True)

    plain, special = script().run(main())
    assert (len(plain), special) == (11, [97, 258])


def test_samplers_compute_probabilities():
    assert softmax([0.0, 0.0]) == pytest.approx([0.5, 0.5])
    assert log_softmax([1000.0, 0.0])[0] == pytest.approx(0.0)
    assert top_p([0.1, 0.6, 0.3], 0.7) == pytest.approx([0.0, 2 / 3, 1 / 3])

    class Candidate:
        def __init__(self, token, logit):
            self.token, self.logit = token, logit

    class Distribution:
        candidates = [Candidate(5, 1.0), Candidate(6, 0.0)]

    generator = random.Random(1)
    drawn = [choose(Distribution, generator) for _ in range(2000)]
    assert 0.68 < drawn.count(5) / 2000 < 0.78
    assert {choose(Distribution, generator, 0.0) for _ in range(5)} == {5}


def test_invalid_body_of_a_stream_is_read_once():
    async def parts():
        yield b"12"
        yield b"+7="

    async def main():
        request = Request("POST", "/", body=parts())
        return await request.text(), await request.text()

    assert asyncio.run(main()) == ("12+7=", "12+7=")
    with pytest.raises(Invalid):
        raise Invalid("x")


@pytest.mark.parametrize(
    "mistake, detail",
    [
        (lambda model: model.sequence(5), "text is 5; expected a list of tokens"),
        (lambda model: model.sequence("\ud800"), "text has half of a surrogate pair; expected text"),
        (lambda model: model.sequence("1").generate("8"), "max_tokens is of type str; expected an integer from 0 to 4294967295"),
        (lambda model: model.sequence("1").generate(-1), "max_tokens is -1; expected an integer from 0 to 4294967295"),
        (lambda model: model.sequence("1").generate(8, temperature=float("nan")), "temperature is nan; expected a finite number"),
        (lambda model: model.sequence("1").generate(8, stop=[5]), "stop is 5; expected a string"),
        (lambda model: model.sequence("1").generate(8, logit_bias={"a": 1}), "a biased token is of type str; expected"),
        (lambda model: model.sequence([1.0]), "a token of text is 1.0; expected an integer from 0 to 4294967295"),
        (lambda model: model.sequence("1").next("5"), "top is of type str; expected an integer from 0 to 4294967295"),
        (lambda model: Model.open(5), "name is 5; expected a string"),
        (lambda model: model.regex(5), "grammar is 5; expected a string"),
    ],
)
def test_wrong_arguments_are_named(mistake, detail):
    async def main():
        with pytest.raises(Invalid) as error:
            made = mistake(await Model.open())
            if hasattr(made, "__await__"):
                await made
        assert error.value.detail.startswith(detail)

    script().run(main())


@pytest.mark.parametrize(
    "answer, detail",
    [
        (lambda: "text", "the handler returned str; expected a Response"),
        (lambda: Response.text(Model.open()), "text is a coroutine; expected a string: is an `await` missing?"),
        (lambda: Response("text"), "the body is of type str; expected bytes"),
        (lambda: Response(status=99), "the status is 99; expected an integer from 200 to 599"),
        (lambda: Response(headers={"a b": "c"}), "a header has the name 'a b'; expected letters"),
        (lambda: Response(headers={"a": 5}), "the header a is 5; expected a string"),
        (lambda: Response(headers={"a": "b\nc"}), "the header a is 'b\\nc'; expected a string without control characters"),
        (lambda: Response(headers={"Connection": "close"}), "the plugin sets the header Connection"),
        (lambda: Problem(200, "code", "detail"), "the status of a problem is 200; expected"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_wrong_responses_are_named(answer, detail):
    async def main(_):
        return answer()

    answered = script().call(main, Request("GET", "/")).json()
    assert (answered["status"], answered["code"]) == (500, "plugin-failed")
    assert answered["detail"].startswith(f"the plugin failed: TypeError: {detail}")


def test_handler_without_async_is_named():
    answered = script().call(lambda _: Response.text("text"), Request("GET", "/")).json()
    assert "write `async def`" in answered["detail"]
