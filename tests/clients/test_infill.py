"""What stands between a prompt and a suffix, by a model that has tokens for it. It was not taught to use them."""

import pytest

from corral import client


def between(**more):
    """Twelve tokens between two texts, the likeliest ones."""
    more = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}, **more}
    return client("CORRAL_THINKING_URL").completions.create(model="thinking", prompt="12+", suffix="=19", **more)


def test_a_text_between_two_others_is_asked_for():
    answer = between()
    # Three characters before, three behind, three marks.
    assert answer.usage.prompt_tokens == 9
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text


@pytest.mark.parametrize("n", [1, 2])
def test_it_is_streamed(n):
    whole = {choice.index: choice.text for choice in between(n=n).choices}
    texts = dict.fromkeys(range(n), "")
    for chunk in between(n=n, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == whole
