"""Legacy completions."""

import uuid

import openai
import pytest

from corral import UNCACHED, MODEL, RELIABLE_SUMS, complete, computed_tokens, tokens


def texts(answer):
    """The texts of the choices, which must be numbered."""
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def streamed(chunks):
    """The texts of a stream's choices."""
    found, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index] = found.get(choice.index, "") + choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert sorted(reasons) == sorted(found) == list(range(len(found)))
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize(("a", "b"), RELIABLE_SUMS)
def test_prompt_is_completed(a, b):
    question = f"{a}+{b}="
    answer = complete(question)
    assert texts(answer) == [str(a + b)]
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.usage.prompt_tokens == len(question)
    assert texts(complete(tokens(question))) == [str(a + b)]
    assert streamed(complete(question, stream=True)) == [str(a + b)]


def test_each_prompt_has_its_choices():
    questions = [f"{a}+{b}=" for a, b in RELIABLE_SUMS]
    answers = [str(a + b) for a, b in RELIABLE_SUMS]
    answer = complete(questions)
    assert texts(answer) == answers
    assert answer.usage.prompt_tokens == sum(map(len, questions))
    assert texts(complete([tokens(question) for question in questions])) == answers
    assert streamed(complete(questions, stream=True)) == answers
    # Two per prompt, grouped by prompt.
    both = [text for text in answers for _ in range(2)]
    assert texts(complete(questions, n=2)) == both
    assert streamed(complete(questions, n=2, stream=True)) == both


def test_shared_prefix_is_computed_once():
    before = f"{uuid.uuid4()} " + "The quiet owl looks at the river and the stone. " * 15 + "\n"
    questions = [f"{before}{a}+{b}=" for a, b in RELIABLE_SUMS]
    answer, count = computed_tokens(lambda: complete(questions, n=2))
    assert texts(answer) == [str(a + b) for a, b in RELIABLE_SUMS for _ in range(2)]
    # Besides the prefix: five questions of up to 6 tokens, and ten answers.
    assert len(before) <= count <= len(before) + 5 * 6 + 10 * 4, f"{count} decoded of {len(before)}"


def test_echo_returns_prompt_first():
    assert texts(complete("12+7=", echo=True)) == ["12+7=19"]
    assert texts(complete(tokens("12+7="), echo=True)) == ["12+7=19"]
    assert streamed(complete("12+7=", echo=True, stream=True)) == ["12+7=19"]
    assert texts(complete(["12+7=", "3+4="], echo=True)) == ["12+7=19", "3+4=7"]


def test_zero_tokens_give_empty_text():
    questions = ["12+7=", "3+4="]
    assert computed_tokens(lambda: texts(complete(questions, max_tokens=0))) == (["", ""], 0)
    assert computed_tokens(lambda: streamed(complete(questions, max_tokens=0, stream=True))) == (["", ""], 0)
    answer = complete("12+7=", max_tokens=0)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 0)
    assert texts(complete("12+7=", max_tokens=0, echo=True)) == ["12+7="]


def test_stop_ends_completion():
    question = "repeat: Blue owls, 7!\n"
    for more, text, reason in [
        ({"stop": "owls"}, "Blue ", "stop"),
        ({"max_tokens": 4}, "Blue", "length"),
        ({}, "Blue owls, 7!", "stop"),
    ]:
        answer = complete(question, **more)
        assert texts(answer) == [text]
        assert answer.choices[0].finish_reason == reason
        assert streamed(complete(question, stream=True, **more)) == [text]


def test_usage_comes_last_in_stream():
    *chunks, last = complete("12+7=", stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.prompt_tokens == 5
    assert streamed(chunks) == ["19"]


@pytest.mark.parametrize("seed", range(3))
def test_stream_joins_to_whole_text(seed):
    more = {"temperature": 1, "seed": seed, "max_tokens": 80, "extra_body": {"ignore_eos": True}}
    answer = texts(complete("The owl", UNCACHED, **more))
    assert answer == texts(complete("The owl", UNCACHED, **more))
    assert answer == streamed(complete("The owl", UNCACHED, stream=True, **more))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"suffix": "."}, "suffix"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [[1, True]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[100_000]]}, "prompt"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 0}, "n"),
        ({"logprobs": 100}, "logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"echo": True, "suffix": "."}, "echo"),
    ],
)
def test_unsupported_fields_are_refused_by_name(more, param):
    with pytest.raises(openai.BadRequestError) as error:
        complete(**{"prompt": "12+7=", **more})
    assert error.value.param.startswith(param), error.value
    assert param in error.value.message
