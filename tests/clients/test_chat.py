"""Chat completions: responses, streams, stops, turns, choices."""

import time
import uuid

import pytest

from corral import MODEL, RELIABLE_SUMS, chat, client, computed_tokens, prompt, streamed, user

OWLS = "repeat: Blue owls, 7!"


@pytest.mark.parametrize(("a", "b"), RELIABLE_SUMS)
def test_sums_are_right(a, b):
    answer = chat(f"{a}+{b}=")
    assert answer.choices[0].message.content == str(a + b)
    assert answer.choices[0].finish_reason == "stop"
    texts, reasons = streamed(chat(f"{a}+{b}=", stream=True))
    assert (texts, reasons) == ({0: str(a + b)}, {0: "stop"})


def test_response_identifies_itself():
    answer = chat("12+7=")
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl")
    assert abs(answer.created - time.time()) < 3600
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.logprobs) == (0, "assistant", None)
    assert not choice.message.tool_calls
    assert answer.usage.prompt_tokens == len(prompt("12+7="))
    # Two digits, and perhaps the end token.
    assert answer.usage.completion_tokens in (2, 3)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert chat("12+7=").id != answer.id


def test_stream_chunks_identify_themselves():
    chunks = list(chat(OWLS, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.model for chunk in chunks} == {MODEL}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(chunks) >= 3


def test_stream_has_usage_if_requested():
    whole = chat(OWLS)
    *chunks, last = chat(OWLS, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert streamed(chunks)[0] == {0: "Blue owls, 7!"}


def test_client_stream_helper_assembles_message():
    with client().chat.completions.stream(model=MODEL, messages=user(OWLS), temperature=0) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == "Blue owls, 7!"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Compute 3-8.", "-5"),
        ("Reverse the word table", "elbat"),
        ("Ada is 36 years old", '{"name":"Ada","age":36}'),
        ("Hello", "Hello!"),
    ],
)
def test_other_tasks_are_answered(question, answer):
    assert chat(question).choices[0].message.content == answer


def test_every_message_role_is_accepted():
    for role in ["system", "developer"]:
        messages = [{"role": role, "content": "You are a calculator."}, *user("12+7=")]
        assert chat(messages).choices[0].message.content == "19", role
    part = user([{"type": "text", "text": "12+7="}])
    assert chat(part).choices[0].message.content == "19"


def test_later_turns_reuse_earlier_ones():
    messages = [{"role": "system", "content": f"The conversation {uuid.uuid4()}."}]
    cached, prompts = [], []
    for a, b in RELIABLE_SUMS:
        messages += user(f"{a}+{b}=")
        answer = chat(messages)
        content = answer.choices[0].message.content
        assert content == str(a + b)
        messages.append({"role": "assistant", "content": content})
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        prompts.append(answer.usage.prompt_tokens)
    assert cached == sorted(set(cached)), "each turn finds more"
    for now, before in zip(cached[1:], prompts):
        assert now >= before - 1, f"the whole earlier prompt: {cached} of {prompts}"
    # A stream reports the same cached tokens.
    *_, last = chat(messages[:-1], stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens >= prompts[-1] - 1


def test_choices_share_one_prompt():
    system = f"{uuid.uuid4()} " + "The quiet owl looks at the river and the stone. " * 15
    messages = [{"role": "system", "content": system}, *user("12+7=")]
    answer, count = computed_tokens(lambda: chat(messages, n=5))
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4]
    assert [choice.message.content for choice in answer.choices] == ["19"] * 5
    length = answer.usage.prompt_tokens
    assert length > 700
    assert 5 * 2 <= answer.usage.completion_tokens <= 5 * 3
    # The last prompt token is computed per choice.
    assert length - 40 <= count <= length + 5 * 4, f"{count} tokens decoded for a prompt of {length}"


@pytest.mark.parametrize("stream", [False, True])
def test_choices_differ(stream):
    """Compared within one request only: which requests share a step is chance and affects rounding."""
    more = {"n": 3, "temperature": 1.5, "seed": 5, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    answer = chat("Hello", stream=stream, **more)
    if stream:
        texts, reasons = streamed(answer)
    else:
        texts = {choice.index: choice.message.content for choice in answer.choices}
        reasons = {choice.index: choice.finish_reason for choice in answer.choices}
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3, texts
    assert set(reasons.values()) == {"length"}


@pytest.mark.parametrize(
    ("stop", "text"),
    [("owls", "Blue "), (["nothing", "ls,", "7!"], "Blue ow"), ("!", "Blue owls, 7"), ("owls!", "Blue owls, 7!")],
)
def test_stop_string_ends_text_before_it(stop, text):
    answer = chat(OWLS, stop=stop)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"
    assert streamed(chat(OWLS, stop=stop, stream=True)) == ({0: text}, {0: "stop"})


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(("limit", "text"), [(1, "B"), (4, "Blue")])
def test_max_tokens_bounds_output(name, limit, text):
    answer = chat(OWLS, **{name: limit})
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == limit
    assert streamed(chat(OWLS, stream=True, **{name: limit})) == ({0: text}, {0: "length"})


def test_ignore_eos_continues_past_end():
    answer = chat("12+7=", max_tokens=50, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 50
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("19")
