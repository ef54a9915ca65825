"""Errors have OpenAI's format and become the client's exceptions."""

import gzip
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from corral import MODEL, PATIENCE, chat, client, metrics, post, send, tokens, user, wait_until


def ask(which="CORRAL_URL", key="none", **more):
    more = {"model": MODEL, "messages": user("12+7="), "temperature": 0, **more}
    return client(which, key).chat.completions.create(**more)


def test_unknown_model_gets_404():
    for create in [
        lambda: ask(model="large"),
        lambda: client().completions.create(model="large", prompt="x"),
        lambda: client().embeddings.create(model="large", input="x"),
        lambda: client().responses.create(model="large", input="x"),
    ]:
        with pytest.raises(openai.NotFoundError) as error:
            create()
        assert (error.value.code, error.value.type) == ("model_not_found", "invalid_request_error")
        assert "large" in error.value.message
        assert MODEL in error.value.message, "it says which there are"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": "12+7="}, "messages"),
        ({"messages": user([{"type": "image_url", "image_url": {"url": "data:,"}}])}, "messages"),
        ({"model": 5}, "model"),
        ({"temperature": -1}, "temperature"),
        ({"n": 1_000_000}, "n"),
        ({"stop": ["x", 5]}, "stop"),
        ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"extra_body": {"top_k": -5}}, "top_k"),
        ({"extra_body": {"lora": [{"id": 0, "scale": 1}]}}, "lora"),
    ],
)
def test_invalid_value_is_named(more, param):
    """The unit tests of the plugin have all fields."""
    with pytest.raises(openai.BadRequestError) as error:
        ask(**more)
    assert error.value.type == "invalid_request_error"
    assert error.value.param and error.value.param.startswith(param), error.value
    assert param in error.value.message


@pytest.mark.parametrize(
    "more",
    [
        {"web_search_options": {}},
        {"extra_body": {"use_beam_search": True}},
    ],
)
def test_unsupported_fields_are_refused_by_name(more):
    (name,) = more.get("extra_body", more)
    with pytest.raises(openai.BadRequestError) as error:
        ask(**more)
    assert error.value.param == name
    assert name in error.value.message


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"extra_body": {"frobnicate": {"a": 1}, "mood": None}}, "frobnicate"),
        ({"verbosity": "low", "top_logprobs": 5}, "verbosity, top_logprobs"),
        ({"messages": [{**user("12+7=")[0], "name": "Ada", "mood": 1}]}, "messages[].mood, messages[].name"),
        ({"user": "alice", "store": True, "service_tier": "flex"}, None),
        ({"prediction": {"type": "content", "content": "19"}, "stream_options": {"include_usage": True}}, None),
    ],
)
def test_ignored_fields_are_named(more, names):
    more = {"model": MODEL, "messages": user("12+7="), "temperature": 0, **more}
    answer = client().chat.completions.with_raw_response.create(**more)
    assert answer.headers.get("x-corral-ignored") == names
    assert answer.parse().choices[0].message.content == "19"


def test_ignored_fields_of_a_stream_are_named():
    body = {"messages": user("12+7="), "temperature": 0, "stream": True, "frobnicate": 1}
    connection, answer = send("/v1/chat/completions", body)
    assert (answer.status, answer.getheader("x-corral-ignored")) == (200, "frobnicate")
    answer.read()
    connection.close()


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": -1},
        {"top_k": -1, "temperature": 0.01},
        {"logit_bias": [["+", -5], [0, False]]},
        {"logit_bias": {"1": 0, "ab": -1}},
        {"stop": None, "tools": None, "response_format": None, "stream_options": None, "n": None, "seed": None},
        {"messages": [{"role": "assistant", "content": None}, *user("12+7=")]},
        {"messages": [{"role": "user", "content": ["12+", {"type": "text", "text": "7="}]}]},
    ],
)
def test_other_forms_of_fields_are_accepted(more):
    body = {"messages": user("12+7="), "temperature": 0, **more}
    status, headers, value = post("/v1/chat/completions", body)
    assert status == 200, value
    assert "x-corral-ignored" not in headers
    assert value["choices"][0]["message"]["content"] == "19"


def test_bias_excludes_tokens_of_a_text():
    """The answer would be 19."""
    (token,) = tokens("1")
    for bias in [[["1", False]], [[token, False]], {str(token): -100}]:
        body = {"messages": user("12+7="), "temperature": 0, "max_tokens": 8, "logit_bias": bias}
        status, _, value = post("/v1/chat/completions", body)
        assert status == 200, value
        assert "1" not in value["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_body_is_read(encoding, compress):
    body = json.dumps({"messages": user("12+7="), "temperature": 0}).encode()
    headers = {"content-encoding": encoding}
    status, _, value = post("/v1/chat/completions/", compress(body), headers=headers)
    assert (status, value["choices"][0]["message"]["content"]) == (200, "19")
    status, _, value = post("/v1/chat/completions", body, headers=headers)
    assert (status, value["error"]["code"]) == (400, "invalid-encoding")
    status, _, value = post("/v1/chat/completions", compress(b" " * (8 << 20) + body), headers=headers)
    assert (status, value["error"]["code"]) == (413, "request-too-large")


def test_other_encodings_are_refused():
    status, _, value = post("/v1/chat/completions", b"x", headers={"content-encoding": "br"})
    assert (status, value["error"]["code"]) == (415, "unsupported-encoding")


def test_harmless_fields_are_accepted():
    answer = ask(user="alice", metadata={"a": "b"}, store=False, n=1, logprobs=False, presence_penalty=0, stop=None)
    assert answer.choices[0].message.content == "19"


def test_invalid_json_is_refused():
    for body in [b"", b"{", b"[]", b'"x"', b"\xff\xfe"]:
        status, headers, value = post("/v1/chat/completions", body)
        assert status == 400, (body, value)
        assert headers["content-type"].startswith("application/json")
        assert value["error"]["type"] == "invalid_request_error"
        assert isinstance(value["error"]["message"], str)
        assert value["error"].keys() == {"message", "type", "param", "code"}


def test_unknown_path_and_method_are_refused():
    status, _, value = post("/v1/nonsense", {})
    assert (status, value["error"]["type"]) == (404, "invalid_request_error")
    status, headers, value = post("/v1/chat/completions", None, method="GET")
    assert (status, value["error"]["type"]) == (405, "invalid_request_error")
    assert headers["allow"] == "POST"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_beyond_context_is_refused(stream):
    for create in [
        lambda: chat("x" * 5000, stream=stream),
        lambda: client().completions.create(model=MODEL, prompt="x" * 5000, stream=stream),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            create()
        assert error.value.code == "context_length_exceeded"
        assert "4096" in error.value.message


def test_oversized_body_is_refused():
    with pytest.raises(openai.APIStatusError) as error:
        ask("CORRAL_NARROW_URL", messages=user("x" * 100_000))
    assert error.value.status_code == 413
    assert error.value.type == "invalid_request_error"


def test_missing_key_is_refused():
    keyed = "CORRAL_KEYED_URL"
    assert ask(keyed, os.environ["CORRAL_KEY"]).choices[0].message.content == "19"
    assert [model.id for model in client(keyed, os.environ["CORRAL_KEY"]).models.list()] == [MODEL]
    with pytest.raises(openai.AuthenticationError) as error:
        ask(keyed, "corral_of-nobody")
    assert (error.value.code, error.value.type) == ("invalid_api_key", "authentication_error")
    with pytest.raises(openai.PermissionDeniedError) as error:
        ask(keyed, os.environ["CORRAL_OTHER_KEY"])
    assert error.value.type == "permission_error"


def hold(which):
    """A long stream whose first chunk has arrived."""
    if which == "CORRAL_NARROW_URL":
        # The stream of an earlier test may end a little late, and the queue time is short.
        wait_until("nothing runs", lambda now: now["corral_engine_requests_running"] == 0, "CORRAL_NARROW_ADMIN")
    held = ask(which, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    next(iter(held))
    return held


def come_again(error):
    return int(error.response.headers["retry-after"])


def test_full_queue_has_retry_after():
    held = hold("CORRAL_NARROW_URL")
    try:
        with pytest.raises(openai.RateLimitError) as error:
            ask("CORRAL_NARROW_URL")
    finally:
        held.close()
    assert come_again(error.value) >= 1
    assert error.value.type == "rate_limit_error"
    assert error.value.code == "rate_limit_exceeded"


def test_full_queue_ends_a_begun_stream():
    held = hold("CORRAL_NARROW_URL")
    try:
        stream = ask("CORRAL_NARROW_URL", stream=True)
        with pytest.raises(openai.APIError) as error:
            list(stream)
    finally:
        held.close()
    assert error.value.type == "rate_limit_error"
    assert error.value.code == "rate_limit_exceeded"


def test_no_free_instance_has_retry_after():
    held = hold("CORRAL_BUSY_URL")
    try:
        with pytest.raises(openai.InternalServerError) as error:
            ask("CORRAL_BUSY_URL")
    finally:
        held.close()
    assert error.value.status_code == 503
    assert come_again(error.value) >= 1
    assert error.value.type == "server_error"


def refused():
    now = metrics("CORRAL_NARROW_ADMIN")
    return now["corral_engine_requests_refused_total"] + now["corral_engine_requests_expired_total"]


def test_retrying_client_succeeds():
    before = refused()
    held = hold("CORRAL_NARROW_URL")
    patient = client("CORRAL_NARROW_URL").with_options(max_retries=100)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(patient.chat.completions.create, model=MODEL, messages=user("12+7="), temperature=0)
        wait_until("it was sent away", lambda _: refused() > before, "CORRAL_NARROW_ADMIN")
        held.close()
        assert asked.result(PATIENCE).choices[0].message.content == "19"


def test_control_tokens_in_content_are_plain_text():
    """A control token in a message cannot end it and begin another one."""
    plain = chat("hi").usage.prompt_tokens
    marked = chat("hi<|im_end|>").usage.prompt_tokens
    assert marked - plain == len("<|im_end|>") == len(tokens("<|im_end|>", parse_special=False))
