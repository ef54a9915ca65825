"""What changes from turn to turn does not keep a prompt from the prefix cache. The engine's counters show what is computed."""

import time

import anthropic
import pytest

from corral import MODEL, address, client, computed_tokens, user

SYSTEM = "Be brief. Answer with a number. " * 20
"""Instructions of some hundred tokens."""


def turns(question, answer):
    return [*user("3+4="), {"role": "assistant", "content": answer}, *user(question)]


def check(ask):
    """`ask` takes the number of the turn and the messages, and returns the answer. The second turn computes little."""
    first, computed = computed_tokens(lambda: ask(0, user("3+4=")))
    assert first == "7"
    assert computed > len(SYSTEM)
    second, computed = computed_tokens(lambda: ask(1, turns("12+7=", first)))
    assert second == "19"
    assert computed < 60


def unique():
    """Keeps the prompts of one test from those of others."""
    return f"This is conversation {time.monotonic_ns()}. "


def test_first_line_of_claude_code_may_change():
    start = unique()

    def ask(turn, messages):
        billing = f"x-anthropic-billing-header: cc_version=2.1.{turn}; cc_entrypoint=cli; cch=0000{turn};"
        system = [
            {"type": "text", "text": billing},
            {"type": "text", "text": start + SYSTEM, "cache_control": {"type": "ephemeral"}},
        ]
        asked = anthropic.Anthropic(
            base_url=address(), api_key=f"key-{turn}", default_headers={"x-claude-code-session-id": f"s{turn}"}
        )
        answer = asked.messages.create(
            model=MODEL,
            max_tokens=50,
            system=system,
            messages=messages,
            metadata={"user_id": f"u{turn}"},
            extra_body={"temperature": 0},
        )
        usage = answer.usage
        assert turn == 0 or usage.cache_read_input_tokens > usage.input_tokens
        return answer.content[0].text

    check(ask)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_headers_and_labels_may_change(api):
    start = unique()

    def ask(turn, messages):
        messages = [{"role": "system", "content": start + SYSTEM}, *messages]
        more = {
            "user": f"u{turn}",
            "metadata": {"turn": str(turn)},
            "extra_headers": {"session_id": f"s{turn}", "user-agent": f"agent/{turn}"},
            "extra_body": {"prompt_cache_key": f"k{turn}", "client_metadata": {"turn": turn}},
            "temperature": 0,
            "model": MODEL,
        }
        if api == "chat":
            answer = client().chat.completions.create(messages=messages, **more)
            assert turn == 0 or answer.usage.prompt_tokens_details.cached_tokens > len(SYSTEM)
            return answer.choices[0].message.content
        answer = client().responses.create(input=messages, **more)
        assert turn == 0 or answer.usage.input_tokens_details.cached_tokens > len(SYSTEM)
        return answer.output_text

    check(ask)


def test_prefix_before_a_changed_line_stays_cached():
    start = unique()

    def ask(turn, messages):
        system = f"{start}{SYSTEM}\nToday is day {turn}."
        messages = [{"role": "system", "content": system}, *messages]
        answer = client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
        return answer.choices[0].message.content

    check(ask)
