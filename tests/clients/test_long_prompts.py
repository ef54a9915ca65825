"""Prompts of 70,000 tokens do not time clients out, with the time limits that the clients have."""

import os
import time

import anthropic
import openai

from corral import address

LONG = "CORRAL_LONG_URL"
"""A server whose model has random weights and a context of 81,920 tokens."""
TOKENS = 70_000


def messages():
    """A prompt of as many tokens as bytes that no other has."""
    return [{"role": "user", "content": os.urandom(8).hex() + "x" * TOKENS}]


def test_head_and_comments_precede_the_first_token():
    ask = openai.OpenAI(base_url=f"{address(LONG)}/v1", api_key="none")
    request = {"model": "long", "messages": messages(), "max_tokens": 2, "stream": True}
    comments, seconds, last = 0, None, None
    with ask.chat.completions.with_streaming_response.create(**request) as answer:
        # The head is there; the first token takes long.
        began = time.monotonic()
        for line in answer.iter_lines():
            comments += line == ": keep-alive"
            if line.startswith("data: "):
                last = line
                if '"finish_reason":"' in line:
                    seconds = time.monotonic() - began
    assert last == "data: [DONE]"
    # The server sends one after each second of silence. A machine that computes the prompt sooner sends none.
    assert comments >= min(1, int(seconds / 3)), seconds


def test_whole_answer_arrives():
    ask = anthropic.Anthropic(base_url=address(LONG), api_key="none")
    answer = ask.messages.create(model="long", messages=messages(), max_tokens=2)
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > TOKENS
