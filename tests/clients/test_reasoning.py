"""Reasoning content, with a model whose template has it."""

import anthropic

from corral import address, client, in_chunks, user

SUM = user("12+7=")


def ask(thinks, **more):
    """A greedy response. The demo model was not trained to reason and never ends its reasoning."""
    template = {"chat_template_kwargs": {"enable_thinking": thinks}}
    return client("CORRAL_THINKING_URL").chat.completions.create(
        model="thinking", messages=SUM, temperature=0, max_tokens=12, extra_body=template, **more
    )


def joined(chunks, name):
    """The joined deltas of this name."""
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    return "".join(getattr(delta, name, None) or "" for delta in deltas)


def test_reasoning_is_separate():
    (choice,) = ask(True).choices
    assert choice.message.reasoning_content
    assert not choice.message.content
    assert choice.finish_reason == "length"


def test_reasoning_is_streamed_separately():
    whole = ask(True).choices[0].message.reasoning_content
    chunks = in_chunks(
        lambda: list(ask(True, stream=True, stream_options={"include_usage": True})),
        lambda chunks: sum("reasoning_content" in str(chunk) for chunk in chunks),
    )
    assert joined(chunks, "reasoning_content") == whole
    assert joined(chunks, "content") == ""
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 12


def test_disabled_reasoning_is_absent():
    (choice,) = ask(False).choices
    assert getattr(choice.message, "reasoning_content", None) is None
    assert choice.message.content == "19"
    chunks = list(ask(False, stream=True))
    assert (joined(chunks, "content"), joined(chunks, "reasoning_content")) == ("19", "")


def test_responses_have_a_reasoning_item():
    answer = client("CORRAL_THINKING_URL").responses.create(
        model="thinking", input="12+7=", temperature=0, max_output_tokens=12
    )
    kinds = [item.type for item in answer.output]
    assert kinds[0] == "reasoning", kinds
    assert answer.output_text == ""
    assert answer.status == "incomplete"


def test_messages_have_signed_thinking():
    asked = anthropic.Anthropic(base_url=address("CORRAL_THINKING_URL"), api_key="none")
    request = {"model": "thinking", "max_tokens": 12, "messages": SUM, "extra_body": {"temperature": 0}}
    whole = asked.messages.create(**request)
    with asked.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    for answer in [whole, streamed]:
        (block,) = answer.content
        assert (block.type, block.signature) == ("thinking", "corral")
    assert streamed.content[0].thinking == whole.content[0].thinking
    # It may be sent back.
    turns = [*SUM, {"role": "assistant", "content": streamed.content}, *SUM]
    assert asked.messages.create(**{**request, "messages": turns}).content
