"""Shared by the suites: server addresses, clients, plain HTTP, and metrics.

`tests/tests/apis/openai_clients.rs` starts the servers and passes their addresses in the environment.
"""

import http.client
import json
import os
import re
import time
import urllib.request
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import jinja2.sandbox
import openai

MODEL = "tiny"
"""Name of the demo model."""

PATIENCE = 300.0
"""Time limit of any single wait, in seconds. Far above what it takes, because machines are busy."""

RELIABLE_SUMS = [(12, 7), (20, 22), (3, 4), (31, 27), (45, 54)]
"""Sums that the demo model answers correctly at any position."""

ROOT = Path(__file__).resolve().parents[2]

# Metrics that are 0 when nothing runs.
IDLE_ZERO = [
    "corral_engine_requests_waiting",
    "corral_engine_requests_running",
    "corral_engine_kv_cells_used",
    "corral_plugin_calls_waiting",
    "corral_plugin_instances",
    "corral_http_requests_in_flight",
]


def environment(name):
    """An environment variable, which `openai_clients.rs` sets."""
    return os.environ[name]


def address(which="CORRAL_URL"):
    """The address of a server, by the name of its environment variable."""
    return environment(which)


def client(which="CORRAL_URL", key="none", **more):
    """A client without retries."""
    return openai.OpenAI(base_url=f"{address(which)}/v1", api_key=key, max_retries=0, timeout=PATIENCE, **more)


def async_client():
    """An asynchronous client without retries."""
    return openai.AsyncOpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def user(content):
    """A conversation of one user message."""
    return [{"role": "user", "content": content}]


UNCACHED = "CORRAL_UNCACHED_URL"
"""The server without a prefix cache. Cell positions affect rounding and so close choices; there, requests that run alone
use the same cells and give identical results."""


def chat(content, which="CORRAL_URL", **more):
    """The greedy response to a message or a list of messages."""
    messages = user(content) if isinstance(content, str) else content
    more = {"temperature": 0, **more}
    return client(which).chat.completions.create(model=MODEL, messages=messages, **more)


def complete(prompt, which="CORRAL_URL", **more):
    """The greedy completion of a prompt."""
    more = {"temperature": 0, **more}
    return client(which).completions.create(model=MODEL, prompt=prompt, **more)


def streamed(chunks):
    """The text and finish reason of each choice of a chat stream."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons, "a choice ends with its finish reason"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    assert texts.keys() == reasons.keys()
    return texts, reasons


# Plain HTTP


def send(path, body, which="CORRAL_URL", headers=None, method="POST"):
    """Sends JSON or raw bytes. Returns the connection and its response, with the body unread."""
    connection = http.client.HTTPConnection(urlsplit(address(which)).netloc, timeout=PATIENCE)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
    return connection, connection.getresponse()


def post(path, body, which="CORRAL_URL", headers=None, method="POST"):
    """Returns status, headers by lower-case name, and the JSON body."""
    connection, answer = send(path, body, which, headers, method)
    text = answer.read()
    connection.close()
    try:
        value = json.loads(text)
    except ValueError:
        raise AssertionError(f"{method} {path}: {answer.status}, not JSON: {text[:500]!r}") from None
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, value


def events(path, body):
    """The server-sent events of a stream: name (or None) and data."""
    connection, answer = send(path, body)
    assert answer.status == 200, answer.read()
    assert answer.getheader("content-type").split(";")[0] == "text/event-stream"
    found, name, data = [], None, []
    for line in answer.read().decode().split("\n"):
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            found.append((name, "\n".join(data)))
            name, data = None, []
    assert not data, "the last event ends"
    connection.close()
    return found


# Tokens


def tokens(text, **more):
    """The tokens of a text."""
    status, _, value = post("/tokenize", {"content": text, **more})
    assert status == 200, value
    return value["tokens"]


def token(text):
    """The token of a one-token text."""
    (number,) = tokens(text)
    return number


# Templates


def render(template, messages, **more):
    """Renders a chat template with jinja2 as `transformers` sets it up."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    now = time.gmtime(more.pop("now", 0))
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: time.strftime(form, now)
    return environment.from_string(template).render(messages=messages, **more)


@cache
def template():
    """The demo model's chat template."""
    return (ROOT / "models/tiny/chat_template.jinja").read_text()


def prompt(content):
    """The prompt tokens of a chat."""
    messages = user(content) if isinstance(content, str) else content
    return tokens(render(template(), messages, add_generation_prompt=True))


# Metrics


def metrics(which="CORRAL_ADMIN"):
    """The current metrics of a server: the sum of each family."""
    with urllib.request.urlopen(f"{address(which)}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    sums = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r"\{.*", "", name)
            sums[name] = sums.get(name, 0) + float(value)
    return sums


def wait_until(what, condition, which="CORRAL_ADMIN"):
    """Waits until `condition` holds and returns the metrics."""
    started = time.monotonic()
    while not condition(found := metrics(which)):
        assert time.monotonic() - started < PATIENCE, f"{what} did not happen: {found}"
        time.sleep(0.005)
    return found


def wait_until_idle(which="CORRAL_ADMIN"):
    """Waits until nothing runs. The engine updates its gauges between steps, so five equal scrapes in a row
    count as idle."""
    quiet, before = 0, None

    def condition(now):
        nonlocal quiet, before
        decoded = now["corral_engine_computed_tokens_total"]
        same = decoded == before and all(now[gauge] == 0 for gauge in IDLE_ZERO)
        quiet, before = (quiet + 1 if same else 0), decoded
        return quiet == 5

    return wait_until("idle", condition, which)


def computed_tokens(action, which="CORRAL_ADMIN"):
    """Returns the result of `action` and the number of tokens computed for it."""
    name = "corral_engine_computed_tokens_total"
    before = wait_until_idle(which)[name]
    result = action()
    return result, wait_until_idle(which)[name] - before


def in_chunks(stream, count):
    """The result of `stream()` once it has more than one chunk. A delayed reader gets a short response in one chunk; a
    server that buffers would always send one."""
    for _ in range(50):
        found = stream()
        if count(found) > 1:
            return found
    raise AssertionError(f"fifty streams arrived in one chunk each, the last one as {found}")
