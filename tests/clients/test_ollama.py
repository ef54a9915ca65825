"""The plugin `ollama` with Ollama's own client."""

import ollama
import pytest

from corral import MODEL, PATIENCE, RELIABLE_SUMS, address, computed_tokens, post, user

GREEDY = {"temperature": 0}


def client():
    return ollama.Client(host=address(), timeout=PATIENCE)


def calculator(expression: str) -> str:
    """Computes an expression.

    Args:
      expression: the expression
    """
    left, right = expression.split("+")
    return str(int(left) + int(right))


@pytest.mark.parametrize("left, right", RELIABLE_SUMS)
def test_chat_answers_whole_and_streamed(left, right):
    asked = {"model": MODEL, "messages": user(f"{left}+{right}="), "options": GREEDY}
    whole = client().chat(**asked)
    assert whole.message.content == str(left + right)
    parts = list(client().chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in [whole, parts[-1]]:
        assert last.done_reason == "stop"
        assert last.eval_count == len(whole.message.content) + 1
        assert last.total_duration >= last.eval_duration > 0


def test_tag_latest_is_optional():
    assert client().chat(MODEL + ":latest", user("12+7="), options=GREEDY).message.content == "19"
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as error:
        client().chat("nope", user("12+7="))
    assert error.value.status_code == 404


def test_tool_is_called_and_its_result_read():
    messages = user("What is 12+7?")
    answer = client().chat(MODEL, messages, tools=[calculator], options=GREEDY)
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("calculator", {"expression": "12+7"})
    result = {"role": "tool", "tool_name": "calculator", "content": calculator(**call.function.arguments)}
    messages = [*messages, answer.message, result]
    assert client().chat(MODEL, messages, tools=[calculator], options=GREEDY).message.content == "19"


def test_format_is_enforced():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client().chat(MODEL, user("Ada is 36 years old"), format=schema, options=GREEDY)
    assert answer.message.content == '{"name":"Ada","age":36}'


def test_generate_with_and_without_template():
    for more in [{}, {"raw": True}]:
        answer = client().generate(MODEL, "12+7=", options=GREEDY, **more)
        assert (answer.response, answer.done_reason) == ("19", "stop")
    short = client().generate(MODEL, "repeat: Blue owls, 7!", options={**GREEDY, "num_predict": 4})
    assert (short.response, short.done_reason, short.eval_count) == ("Blue", "length", 4)


@pytest.mark.parametrize("asked", [{"messages": user("12+7=")}, {"prompt": "12+7="}, {"prompt": "12+7=", "raw": True}])
def test_tokens_have_log_probabilities(asked):
    ask = client().chat if "messages" in asked else client().generate
    asked = {"model": MODEL, "options": GREEDY, "logprobs": True, "top_logprobs": 2, **asked}
    parts = list(ask(**asked, stream=True))
    for entries in [ask(**asked).logprobs, [entry for part in parts for entry in part.logprobs or []]]:
        assert "".join(entry.token for entry in entries) == "19"
        for entry in entries:
            assert [entry.token, entry.logprob] == [entry.top_logprobs[0].token, entry.top_logprobs[0].logprob]
            assert len(entry.top_logprobs) == 2


def test_second_request_reuses_the_prompt():
    prompt = "An owl sat on a fence and asked. " * 8 + "\n"
    ask = lambda sum: client().chat(MODEL, user(prompt + sum), options=GREEDY)
    first, computed = computed_tokens(lambda: ask("3+4="))
    assert first.message.content == "7"
    # Other tests leave the template's first tokens in the cache.
    assert computed > 200
    second, computed = computed_tokens(lambda: ask("20+22="))
    assert second.message.content == "42"
    assert computed < 40


def test_embeddings_of_several_texts():
    answer = client().embed(MODEL, ["an owl", "a fence"])
    assert [len(vector) for vector in answer.embeddings] == [128, 128]
    one = client().embeddings(MODEL, "an owl").embedding
    assert one == pytest.approx(answer.embeddings[0], abs=1e-3)


def test_models_are_listed_and_shown():
    assert MODEL in [model.model for model in client().list().models]
    assert MODEL in [model.model for model in client().ps().models]
    shown = client().show(MODEL)
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo["model.context_length"] == 4096
    assert client().pull(MODEL).status == "success"


def test_members_without_effect_are_named():
    options = {**GREEDY, "num_ctx": 100}
    body = {"model": MODEL, "messages": user("12+7="), "options": options, "mood": 1, "keep_alive": "5m", "stream": False}
    status, headers, value = post("/api/chat", body)
    assert (status, value["message"]["content"]) == (200, "19")
    assert headers["x-corral-ignored"] == "options.num_ctx, mood"


def test_errors_name_the_member():
    status, _, value = post("/api/chat", {"model": MODEL, "messages": user("x"), "format": "xml"})
    assert (status, list(value)) == (400, ["error"])
    assert "format" in value["error"]
