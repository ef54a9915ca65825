"""Log probabilities."""

import math

import pytest

from corral import RELIABLE_SUMS, chat, complete, computed_tokens, prompt, token, tokens

# Tolerance of a logprob between two evaluations: batches round differently.
SAME = 0.05

FREE = {"ignore_eos": True}

# The demo model's end token.
ENDS = ["<|endoftext|>", "<|im_end|>"]


def check(entry, top):
    """Checks the entry of a token with `top` alternatives."""
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
    """The text tokens; the end token may have an entry too."""
    words = [entry for entry in entries if entry.token not in ("", end)]
    assert len(words) >= len(entries) - 1
    return words


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_every_token_has_a_logprob(top):
    answer = chat("repeat: Blue owls, 7!", logprobs=True, top_logprobs=top)
    entries = answer.choices[0].logprobs.content
    totals = [check(entry, top) for entry in entries]
    words = said(entries)
    assert "".join(entry.token for entry in words) == answer.choices[0].message.content
    if top:
        # Greedy output is likeliest, and the model is certain of repeated text.
        assert all(entry.token == entry.top_logprobs[0].token for entry in words)
        assert min(totals) > 0.9


def test_stream_has_same_logprobs():
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


def test_logprobs_ignore_samplers():
    plain = chat("12+7=", logprobs=True).choices[0].logprobs.content[0]
    bent = chat("12+7=", logprobs=True, temperature=2, top_p=0.5, max_tokens=1, logit_bias={str(token("1")): 50})
    assert bent.choices[0].message.content == "1"
    assert bent.choices[0].logprobs.content[0].logprob == pytest.approx(plain.logprob, abs=SAME)


def test_logprobs_agree_token_by_token():
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


def test_completions_use_legacy_logprobs():
    choice = complete("12+7=", logprobs=4, max_tokens=2).choices[0]
    logprobs = choice.logprobs
    assert logprobs.tokens == ["1", "9"]
    assert logprobs.text_offset == [0, 1]
    for log, word, top in zip(logprobs.token_logprobs, logprobs.tokens, logprobs.top_logprobs):
        assert math.isfinite(log) and log <= 1e-4
        # The chosen token is one of them; otherwise it would be a fifth entry.
        assert len(top) == 4
        assert top[word] == log == max(top.values())
        assert sum(map(math.exp, top.values())) <= 1.001


def scored(prompts, top=1, **more):
    """The logprobs of prompt tokens, without generation."""
    more = {"echo": True, "max_tokens": 0, "logprobs": top, **more}
    return complete(prompts, **more).choices


def test_prompt_logprobs_equal_generated_ones():
    text = "The owl, a zebra: 7!"
    numbers = tokens(text)
    # As text and as token ids.
    for asked in [text, [numbers]]:
        (choice,) = scored(asked, top=3)
        told = choice.logprobs
        assert (choice.text, choice.finish_reason) == (text, "length")
        assert told.tokens == list(text)
        assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert sum(told.token_logprobs[1:]) < -4, "not all of it is likely"
    for at in range(1, len(numbers)):
        force = {"max_tokens": 1, "logit_bias": {str(numbers[at]): 100}, "extra_body": FREE}
        said = complete(numbers[:at], logprobs=3, **force).choices[0].logprobs
        assert said.tokens == [text[at]]
        assert told.token_logprobs[at] == pytest.approx(said.token_logprobs[0], abs=SAME)
        # The top three, without the token itself if it is not among them.
        tops = [sorted(top.values())[-3:] for top in [told.top_logprobs[at], said.top_logprobs[0]]]
        assert tops[0] == pytest.approx(tops[1], abs=SAME)


def test_right_answer_is_likelier():
    """As evaluation harnesses ask: the logprob of each answer after each question."""
    prompts = [f"{a}+{b}={answer}" for a, b in RELIABLE_SUMS for answer in [a + b, a + b + 1]]
    choices = scored(prompts)
    assert [choice.text for choice in choices] == prompts
    sums = []
    for text, choice in zip(prompts, choices, strict=True):
        told = choice.logprobs
        begin = text.index("=") + 1
        assert told.tokens == list(text)
        assert told.text_offset == list(range(len(text)))
        assert len(told.token_logprobs) == len(told.top_logprobs) == len(text)
        assert all(log <= 0 for log in told.token_logprobs[1:])
        greedy = [log == max(top.values()) for log, top in zip(told.token_logprobs[1:], told.top_logprobs[1:])]
        sums.append((sum(told.token_logprobs[begin:]), all(greedy[begin - 1 :])))
    for (right, is_greedy), (wrong, is_not) in zip(sums[::2], sums[1::2]):
        assert right > wrong + 1
        assert (is_greedy, is_not) == (True, False)


def test_echoed_prompt_precedes_generation():
    more = {"echo": True, "logprobs": 2}
    (choice,) = complete("12+7=", **more).choices
    assert choice.text == "12+7=19"
    # The end token has an entry too, without text.
    assert choice.logprobs.tokens[:-1] == list("12+7=19")
    assert choice.logprobs.tokens[-1] in ENDS
    assert choice.logprobs.text_offset == list(range(8))
    pieces = [chunk.choices[0] for chunk in complete("12+7=", stream=True, **more)]
    assert pieces[0].text == "12+7="
    assert "".join(piece.text for piece in pieces) == "12+7=19"
    logs = [log for piece in pieces for log in piece.logprobs.token_logprobs]
    assert logs[0] is None
    assert logs[1:] == pytest.approx(choice.logprobs.token_logprobs[1:], abs=SAME)


def test_echo_with_one_token_has_entry_after_prompt():
    """As lm-eval asks: it takes all entries but the last as the prompt's."""
    prompts = [f"{a}+{b}={a + b}" for a, b in RELIABLE_SUMS]
    choices = scored(prompts, max_tokens=1)
    for text, choice in zip(prompts, choices, strict=True):
        assert (choice.text, choice.finish_reason) == (text, "stop")
        told = choice.logprobs
        assert len(told.token_logprobs) == len(tokens(text)) + 1
        assert told.tokens[:-1] == list(text) and told.tokens[-1] in ENDS
        assert told.text_offset == list(range(len(text) + 1))
        assert math.isfinite(told.token_logprobs[-1])


@pytest.mark.parametrize("top", [0, 1])
def test_echoed_prompt_is_computed_once(top):
    """One step per token, shared by the prompts of a request."""
    prompts = [f"{a}+{b}={a + b}" for a, b in RELIABLE_SUMS]
    choices, count = computed_tokens(lambda: scored(prompts, top))
    assert len(choices) == len(prompts)
    # The last token is not computed; the top tokens nearly always contain the right one.
    assert count <= sum(map(len, prompts)) + (len(prompts) if top else 0)
    # Some share a prefix.
    assert count >= sum(map(len, prompts)) - 4 * len(prompts)
