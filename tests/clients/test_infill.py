"""Fill-in-the-middle with a model that has the tokens but was not trained for it."""

import pytest

from corral import client


def between(**more):
    """Twelve greedy tokens between two texts."""
    more = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}, **more}
    return client("CORRAL_THINKING_URL").completions.create(model="thinking", prompt="12+", suffix="=19", **more)


def test_infill_uses_prefix_and_suffix():
    answer = between()
    # Three characters before, three after, three control tokens.
    assert answer.usage.prompt_tokens == 9
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text


@pytest.mark.parametrize("n", [1, 2])
def test_infill_is_streamed(n):
    whole = {choice.index: choice.text for choice in between(n=n).choices}
    texts = dict.fromkeys(range(n), "")
    for chunk in between(n=n, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == whole
