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
        "top_n_sigma": {"extra": {"top_n_sigma": 0.0001}},
        "mirostat": {"extra": {"mirostat": 2, "mirostat_tau": 0}},
    }.items():
        assert {free(seed, **more) for seed in range(3)} == {greedy}, name
    # Each alone is not greedy.
    for name, more in {"top_p": {"top_p": 1}, "top_k": {"extra": {"top_k": 100}}, "min_p": {"extra": {"min_p": 0}}}.items():
        assert {free(seed, **more) for seed in range(3)} != {greedy}, name


LLAMA_SAMPLERS = {
    "typical": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 1, "xtc_threshold": 0.01},
    "dry": {"dry_multiplier": 5, "dry_base": 1.5, "dry_allowed_length": 1, "dry_sequence_breakers": ["."]},
    "dynatemp": {"dynatemp_range": 1, "dynatemp_exponent": 0.5},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0.2},
}


@pytest.mark.parametrize("name", LLAMA_SAMPLERS)
def test_llama_samplers_change_text_and_repeat_with_seed(name):
    extra = LLAMA_SAMPLERS[name]
    texts = [free(seed, extra) for seed in range(3)]
    assert [free(seed, extra) for seed in range(3)] == texts
    assert texts != [free(seed) for seed in range(3)]
    streamed_text, _ = streamed(
        chat("Hello", UNCACHED, stream=True, seed=1, temperature=1.5, max_tokens=60, extra_body={**FREE, **extra})
    )
    assert streamed_text == {0: texts[1]}


def test_disabled_llama_samplers_change_nothing():
    off = {
        "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dry_multiplier": 0, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": [], "dynatemp_range": 0, "mirostat": 0, "lora": [],
    }  # fmt: skip
    assert free(7, off) == free(7)


def test_dry_ends_repetition():
    def repeats(**extra):
        text = complete("a b a b a b a b", max_tokens=100, extra_body={**FREE, **extra}).choices[0].text
        triples = [text[start : start + 3] for start in range(len(text) - 2)]
        return len(triples) - len(set(triples))

    dry = {"dry_multiplier": 1000, "dry_base": 1, "dry_allowed_length": 2, "dry_sequence_breakers": []}
    assert repeats(**dry, dry_penalty_last_n=-1) == 0 < repeats()


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
