"""What the suites share: where the servers are, clients for them, plain HTTP, and the counters.

`tests/tests/openai_clients.rs` starts the servers and says where they are by the environment.
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
"""The demo model's name at the servers."""

PATIENCE = 300.0
"""Seconds that anything may take before a test fails. Far more than it takes: machines are busy."""

SURE = [(12, 7), (20, 22), (3, 4), (31, 27), (45, 54)]
"""Sums that the demo model gets right wherever they stand."""

ROOT = Path(__file__).resolve().parents[2]

# What has to be zero when nothing runs.
GAUGES = [
    "corral_engine_requests_waiting",
    "corral_engine_requests_running",
    "corral_engine_kv_cells_used",
    "corral_plugin_calls_waiting",
    "corral_plugin_instances",
    "corral_http_requests_in_flight",
]


def address(which="CORRAL_URL"):
    """The address of a server, by the name of its variable."""
    return os.environ[which]


def client(which="CORRAL_URL", key="none", **more):
    """A client that tries everything once."""
    return openai.OpenAI(base_url=f"{address(which)}/v1", api_key=key, max_retries=0, timeout=PATIENCE, **more)


def async_client():
    """The same, asynchronous."""
    return openai.AsyncOpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def user(content):
    """A conversation of one message."""
    return [{"role": "user", "content": content}]


FORGETFUL = "CORRAL_FORGETFUL_URL"
"""The server that keeps no prefixes. Where a text lies in the cells makes sums round differently, and a close choice may
fall otherwise; there each text that is asked for alone lies where the one before lay, so what is compared is the same."""


def chat(content, which="CORRAL_URL", **more):
    """The answer to one message, or to a list of them, by default the likeliest one."""
    messages = user(content) if isinstance(content, str) else content
    more = {"temperature": 0, **more}
    return client(which).chat.completions.create(model=MODEL, messages=messages, **more)


def complete(prompt, which="CORRAL_URL", **more):
    """What follows a prompt, by default the likeliest."""
    more = {"temperature": 0, **more}
    return client(which).completions.create(model=MODEL, prompt=prompt, **more)


def streamed(chunks):
    """The text of each choice of a stream of chat chunks, and its reason to end."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing of a choice follows its end"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    assert texts.keys() == reasons.keys()
    return texts, reasons


# Plain HTTP


def send(path, body, which="CORRAL_URL", headers=None, method="POST"):
    """Sends JSON, or bytes as they are; the connection and its answer, whose body is not read yet."""
    connection = http.client.HTTPConnection(urlsplit(address(which)).netloc, timeout=PATIENCE)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
    return connection, connection.getresponse()


def post(path, body, which="CORRAL_URL", headers=None, method="POST"):
    """Status, headers by lower-case name, and the JSON of the answer."""
    connection, answer = send(path, body, which, headers, method)
    text = answer.read()
    connection.close()
    try:
        value = json.loads(text)
    except ValueError:
        raise AssertionError(f"{method} {path}: {answer.status}, and no JSON: {text[:500]!r}") from None
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, value


def events(path, body):
    """The server-sent events of a stream: name (or nothing) and data."""
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
    """The one token of a text."""
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
    """The demo model's own."""
    return (ROOT / "models/tiny/chat_template.jinja").read_text()


def prompt(content):
    """The tokens that the demo model reads for a chat."""
    messages = user(content) if isinstance(content, str) else content
    return tokens(render(template(), messages, add_generation_prompt=True))


# Counters


def metrics(which="CORRAL_ADMIN"):
    """The samples of a server's /metrics now: the sum of each family."""
    with urllib.request.urlopen(f"{address(which)}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    sums = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r"\{.*", "", name)
            sums[name] = sums.get(name, 0) + float(value)
    return sums


def wait_until(what, it_is, which="CORRAL_ADMIN"):
    """The counters as soon as `it_is` so."""
    started = time.monotonic()
    while not it_is(found := metrics(which)):
        assert time.monotonic() - started < PATIENCE, f"no sign that {what}: {found}"
        time.sleep(0.005)
    return found


def settled():
    """The counters once nothing runs. The engine writes its gauges between steps, so nothing runs when
    several looks in a row find nothing, and nothing new."""
    quiet, before = 0, None

    def it_is(now):
        nonlocal quiet, before
        decoded = now["corral_engine_computed_tokens_total"]
        same = decoded == before and all(now[gauge] == 0 for gauge in GAUGES)
        quiet, before = (quiet + 1 if same else 0), decoded
        return quiet == 5

    return wait_until("nothing runs", it_is)


def decoded(deed):
    """What `deed` returns, and how many tokens the engine decoded for it."""
    name = "corral_engine_computed_tokens_total"
    before = settled()[name]
    result = deed()
    return result, settled()[name] - before


def in_pieces(stream, count):
    """What `stream()` gives, once it has more than one piece by `count`. A reader that is held up gets all of a short answer
    at once; a server that waits for its end would give it so each time."""
    for _ in range(50):
        found = stream()
        if count(found) > 1:
            return found
    raise AssertionError(f"fifty streams came in one piece each, the last one as {found}")
