"""LiteLLM, with its three providers that speak this server's APIs."""

import json

import litellm
import pytest

from corral import MODEL, RELIABLE_SUMS, address, user
from test_tools import CALCULATOR

PROVIDERS = [("hosted_vllm", "/v1"), ("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")]


def complete(provider, content, **more):
    name, path = provider
    messages = user(content) if isinstance(content, str) else content
    return litellm.completion(
        model=f"{name}/{MODEL}",
        api_base=address() + path,
        api_key="none",
        messages=messages,
        temperature=0,
        num_retries=0,
        **more,
    )


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider[0])
def test_sums_are_right_whole_and_streamed(provider):
    for a, b in RELIABLE_SUMS:
        answer = complete(provider, f"{a}+{b}=")
        assert answer.choices[0].message.content == str(a + b)
        assert answer.choices[0].finish_reason == "stop"
        chunks = list(complete(provider, f"{a}+{b}=", stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == str(a + b)


@pytest.mark.parametrize("provider", PROVIDERS[:3], ids=lambda provider: provider[0])
def test_streamed_tool_call_round_trip(provider):
    chunks = list(complete(provider, "What is 12+7?", tools=[CALCULATOR], stream=True))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"expression": "12+7"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "4711"}
    turns = [*user("What is 12+7?"), message, result]
    assert complete(provider, turns, tools=[CALCULATOR]).choices[0].message.content == "4711"


def test_embedding_has_the_models_length():
    answer = litellm.embedding(model=f"hosted_vllm/{MODEL}", input=["12+7="], api_base=f"{address()}/v1", api_key="none")
    assert len(answer.data[0]["embedding"]) == 128
