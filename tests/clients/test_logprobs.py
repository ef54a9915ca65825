"""How likely a token was."""

import math

import pytest

from corral import chat, complete, prompt, token

# What a token's logarithm may differ by between two evaluations: other batches, other rounding.
SAME = 0.05

FREE = {"ignore_eos": True}


def check(entry, top):
    """Checks a token's entry, of which the first `top` alternatives were asked for."""
    assert math.isfinite(entry.logprob) and entry.logprob <= 1e-4
    assert bytes(entry.bytes).decode(errors="replace") == entry.token
    logs = [other.logprob for other in entry.top_logprobs]
    assert len(logs) == top
    assert logs == sorted(logs, reverse=True)
    assert all(math.isfinite(log) for log in logs)
    total = sum(map(math.exp, logs))
    assert total <= 1.001, total
    same = [other.logprob for other in entry.top_logprobs if other.bytes == entry.bytes]
    assert all(log == entry.logprob for log in same)
    return total


def said(entries, end="<|im_end|>"):
    """The tokens that are text; the end token may have an entry too."""
    words = [entry for entry in entries if entry.token not in ("", end)]
    assert len(words) >= len(entries) - 1
    return words


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_every_token_has_its_logarithm(top):
    answer = chat("repeat: Blue owls, 7!", logprobs=True, top_logprobs=top)
    entries = answer.choices[0].logprobs.content
    totals = [check(entry, top) for entry in entries]
    words = said(entries)
    assert "".join(entry.token for entry in words) == answer.choices[0].message.content
    if top:
        # The likeliest is what is said, and the model is sure of what it repeats.
        assert all(entry.token == entry.top_logprobs[0].token for entry in words)
        assert min(totals) > 0.9


def test_a_stream_brings_the_same():
    more = {"logprobs": True, "top_logprobs": 3}
    whole = chat("repeat: Blue owls, 7!", **more).choices[0].logprobs.content
    entries = []
    for chunk in chat("repeat: Blue owls, 7!", stream=True, **more):
        for choice in chunk.choices:
            mine = choice.logprobs.content if choice.logprobs else []
            entries += mine or []
            text = "".join(entry.token for entry in said(mine or []))
            assert text == (choice.delta.content or ""), "a chunk has the entries of its text"
    assert [entry.token for entry in entries] == [entry.token for entry in whole]
    for one, other in zip(entries, whole):
        assert one.logprob == pytest.approx(other.logprob, abs=SAME)
        assert [top.token for top in one.top_logprobs] == [top.token for top in other.top_logprobs]


def test_they_are_the_models_own_whatever_the_samplers_do():
    plain = chat("12+7=", logprobs=True).choices[0].logprobs.content[0]
    bent = chat("12+7=", logprobs=True, temperature=2, top_p=0.5, max_tokens=1, logit_bias={str(token("1")): 50})
    assert bent.choices[0].message.content == "1"
    assert bent.choices[0].logprobs.content[0].logprob == pytest.approx(plain.logprob, abs=SAME)


def test_asked_token_by_token_they_are_the_same():
    more = {"temperature": 2, "seed": 3, "max_tokens": 16, "extra_body": FREE}
    entries = chat("Hello", logprobs=True, **more).choices[0].logprobs.content
    assert len(entries) == 16
    assert sum(entry.logprob for entry in entries) < -4, "chance took what is not likely, too"
    context = prompt("Hello")
    for entry in entries:
        number = token(entry.token)
        again = complete(context, max_tokens=1, logprobs=5, logit_bias={str(number): 100}, extra_body=FREE)
        logprobs = again.choices[0].logprobs
        assert logprobs.tokens == [entry.token]
        assert logprobs.token_logprobs[0] == pytest.approx(entry.logprob, abs=SAME)
        context.append(number)


def test_completions_have_them_in_their_own_form():
    choice = complete("12+7=", logprobs=4, max_tokens=2).choices[0]
    logprobs = choice.logprobs
    assert logprobs.tokens == ["1", "9"]
    assert logprobs.text_offset == [0, 1]
    for log, word, top in zip(logprobs.token_logprobs, logprobs.tokens, logprobs.top_logprobs):
        assert math.isfinite(log) and log <= 1e-4
        assert len(top) == 4
        assert top[word] == log == max(top.values())
        assert sum(map(math.exp, top.values())) <= 1.001
