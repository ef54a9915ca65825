"""Concurrent clients and disconnects."""

import asyncio

from corral import MODEL, async_client, chat, client, complete, metrics, wait_until_idle, user, wait_until

SUMS = [(number * 7919 + 1234) % 10_000 for number in range(32)]


def test_concurrent_sums_are_right():
    async def all_of_them():
        async with async_client() as asking:

            async def ask(number, stream):
                question = user(f"{number // 100}+{number % 100}=")
                request = {"model": MODEL, "messages": question, "temperature": 0}
                if not stream:
                    return (await asking.chat.completions.create(**request)).choices[0].message.content
                chunks = await asking.chat.completions.create(stream=True, **request)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            return await asyncio.gather(*(ask(number, index % 2 == 1) for index, number in enumerate(SUMS)))

    alone = [chat(f"{number // 100}+{number % 100}=").choices[0].message.content for number in SUMS]
    assert alone == [str(number // 100 + number % 100) for number in SUMS]
    before = wait_until_idle()
    assert asyncio.run(all_of_them()) == alone
    now = wait_until_idle()
    rows, steps = (now[name] - before[name] for name in ["corral_engine_rows_total", "corral_engine_steps_total"])
    assert rows > steps * 1.2, f"steps are shared: {rows} rows in {steps}"


def freed():
    """The metrics once idle, after the only client disconnected."""
    wait_until("the call is over", lambda now: now["corral_plugin_instances"] == 0)
    # At most the step in flight still computes its sequences.
    over, now = metrics(), wait_until_idle()
    steps = "corral_engine_steps_total"
    assert now[steps] - over[steps] <= 1
    return now


def gone(stream, count=1):
    """Drops a long stream of `count` choices; their sequences end."""
    before = wait_until_idle()
    answers = stream()
    next(iter(answers))
    wait_until("they run", lambda now: now["corral_engine_requests_running"] == count)
    answers.close()
    now = freed()
    grown = {name: now[name] - before[name] for name in now}
    assert grown["corral_engine_requests_canceled_total"] == count
    assert grown["corral_engine_requests_finished_total"] == 0


ENDLESS = {"stream": True, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}


def test_disconnect_frees_the_sequence():
    gone(lambda: chat("12+7=", **ENDLESS))
    gone(lambda: complete("12+7=", **ENDLESS))


def test_disconnect_frees_every_choice():
    gone(lambda: chat("12+7=", n=4, **ENDLESS), 4)


def test_client_timeout_frees_the_sequence():
    """The client times out before the response begins."""
    before = wait_until_idle()
    impatient = client().with_options(timeout=1)
    request = {"model": MODEL, "messages": user("12+7="), "max_tokens": 4000, "n": 8}
    try:
        impatient.chat.completions.create(**request, extra_body={"ignore_eos": True})
    except Exception as error:
        assert type(error).__name__ == "APITimeoutError"
        now = freed()
        cancelled = "corral_engine_requests_canceled_total"
        assert now[cancelled] > before[cancelled]
    else:
        raise AssertionError("32,000 tokens in a second")
