"""How a token is chosen."""

import pytest

from corral import FORGETFUL, chat, complete, streamed, token

FREE = {"ignore_eos": True}
OWLS = "repeat: Blue owls, 7!"


def free(seed=None, extra=None, **more):
    """Sixty tokens by chance."""
    more = {"temperature": 1.5, "max_tokens": 60, **more}
    answer = chat("Hello", FORGETFUL, seed=seed, extra_body={**FREE, **(extra or {})}, **more)
    return answer.choices[0].message.content


def test_the_same_seed_gives_the_same_text():
    texts = [free(seed) for seed in range(5)]
    assert [free(seed) for seed in range(5)] == texts
    assert len(set(texts)) == 5, texts


def test_without_a_seed_it_is_another_text():
    assert len({free() for _ in range(4)}) > 1


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_gives_the_text_of_the_whole_answer(seed):
    more = {"temperature": 1, "seed": seed, "max_tokens": 120, "extra_body": FREE}
    (choice,) = chat(OWLS, FORGETFUL, **more).choices
    texts, reasons = streamed(chat(OWLS, FORGETFUL, stream=True, **more))
    assert (texts, reasons) == ({0: choice.message.content}, {0: choice.finish_reason})


def test_several_texts_are_streamed_as_they_are_told_at_once():
    """The likeliest ones. By chance they may part: which texts share a step is not the same twice, so sums
    are rounded differently."""
    whole = chat(OWLS, n=3)
    texts, reasons = streamed(chat(OWLS, n=3, stream=True))
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert list(texts.values()) == ["Blue owls, 7!"] * 3


def test_who_leaves_only_the_likeliest_is_not_left_to_chance():
    greedy = free(temperature=0)
    assert greedy == free(temperature=0, seed=3)
    for name, more in {
        "top_p": {"top_p": 0.0001},
        "top_k": {"extra": {"top_k": 1}},
        "min_p": {"extra": {"min_p": 1}},
    }.items():
        assert {free(seed, **more) for seed in range(3)} == {greedy}, name
    # And none of them does that by itself.
    for name, more in {"top_p": {"top_p": 1}, "top_k": {"extra": {"top_k": 100}}, "min_p": {"extra": {"min_p": 0}}}.items():
        assert {free(seed, **more) for seed in range(3)} != {greedy}, name


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_make_a_text_more_varied(name):
    def varied(penalty):
        return sum(len(set(free(seed, max_tokens=150, temperature=1, **{name: penalty}))) for seed in range(3))

    assert varied(-2) < varied(2)


def test_penalties_count_the_answer_alone():
    more = {"logit_bias": {str(token("a")): 100}, "frequency_penalty": 2, "extra_body": FREE}
    # A hundred in the prompt cost nothing, or another token would come.
    prompt = "a" * 100
    assert complete(prompt, max_tokens=3, **more).choices[0].text == "aaa"
    # Each of the answer's own costs two, so they come to an end.
    assert complete(prompt, max_tokens=150, **more).choices[0].text != "a" * 150


def test_a_token_can_be_banned_and_forced():
    one, five = token("1"), token("5")
    banned = chat("12+7=", logit_bias={str(one): -100}, max_tokens=8).choices[0].message.content
    assert "1" not in banned
    for stream in [False, True]:
        answer = chat("12+7=", logit_bias={str(five): 100}, max_tokens=3, stream=stream)
        text = streamed(answer)[0][0] if stream else answer.choices[0].message.content
        assert text == "555"


def test_temperature_evens_out_what_is_likely():
    cold = [chat("12+7=", temperature=0.05, seed=seed).choices[0].message.content for seed in range(5)]
    assert cold == ["19"] * 5
    hot = {free(seed, temperature=2) for seed in range(5)}
    assert len(hot) == 5
