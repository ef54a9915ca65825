"""Sampling parameters."""

import pytest

from corral import UNCACHED, chat, complete, streamed, token

FREE = {"ignore_eos": True}
OWLS = "repeat: Blue owls, 7!"


def free(seed=None, extra=None, **more):
    """Sixty sampled tokens."""
    more = {"temperature": 1.5, "max_tokens": 60, **more}
    answer = chat("Hello", UNCACHED, seed=seed, extra_body={**FREE, **(extra or {})}, **more)
    return answer.choices[0].message.content


def test_same_seed_gives_same_text():
    texts = [free(seed) for seed in range(5)]
    assert [free(seed) for seed in range(5)] == texts
    assert len(set(texts)) == 5, texts


def test_no_seed_gives_different_text():
    assert len({free() for _ in range(4)}) > 1


@pytest.mark.parametrize("seed", range(4))
def test_stream_joins_to_whole_text(seed):
    more = {"temperature": 1, "seed": seed, "max_tokens": 120, "extra_body": FREE}
    (choice,) = chat(OWLS, UNCACHED, **more).choices
    texts, reasons = streamed(chat(OWLS, UNCACHED, stream=True, **more))
    assert (texts, reasons) == ({0: choice.message.content}, {0: choice.finish_reason})


def test_streamed_choices_equal_whole_ones():
    """Greedy only: which requests share a step affects rounding, so sampled texts may differ."""
    whole = chat(OWLS, n=3)
    texts, reasons = streamed(chat(OWLS, n=3, stream=True))
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert list(texts.values()) == ["Blue owls, 7!"] * 3


def test_one_token_samplers_are_greedy():
    greedy = free(temperature=0)
    assert greedy == free(temperature=0, seed=3)
    for name, more in {
        "top_p": {"top_p": 0.0001},
        "top_k": {"extra": {"top_k": 1}},
        "min_p": {"extra": {"min_p": 1}},
    }.items():
        assert {free(seed, **more) for seed in range(3)} == {greedy}, name
    # Each alone is not greedy.
    for name, more in {"top_p": {"top_p": 1}, "top_k": {"extra": {"top_k": 100}}, "min_p": {"extra": {"min_p": 0}}}.items():
        assert {free(seed, **more) for seed in range(3)} != {greedy}, name


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_increase_variety(name):
    def varied(penalty):
        return sum(len(set(free(seed, max_tokens=150, temperature=1, **{name: penalty}))) for seed in range(3))

    assert varied(-2) < varied(2)


def test_penalties_ignore_the_prompt():
    more = {"logit_bias": {str(token("a")): 100}, "frequency_penalty": 2, "extra_body": FREE}
    # A hundred in the prompt have no penalty, or another token would follow.
    prompt = "a" * 100
    assert complete(prompt, max_tokens=3, **more).choices[0].text == "aaa"
    # Each generated one costs two, so they stop.
    assert complete(prompt, max_tokens=150, **more).choices[0].text != "a" * 150


def test_logit_bias_bans_and_forces():
    one, five = token("1"), token("5")
    banned = chat("12+7=", logit_bias={str(one): -100}, max_tokens=8).choices[0].message.content
    assert "1" not in banned
    for stream in [False, True]:
        answer = chat("12+7=", logit_bias={str(five): 100}, max_tokens=3, stream=stream)
        text = streamed(answer)[0][0] if stream else answer.choices[0].message.content
        assert text == "555"


def test_temperature_flattens_distribution():
    cold = [chat("12+7=", temperature=0.05, seed=seed).choices[0].message.content for seed in range(5)]
    assert cold == ["19"] * 5
    hot = {free(seed, temperature=2) for seed in range(5)}
    assert len(hot) == 5
