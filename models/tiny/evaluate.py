"""Score the model on held-out items: `python evaluate.py`, or `--url http://127.0.0.1:8080`.

Without `--url` it reads tiny.gguf (tensors, hyper-parameters, tokens, merges), runs a forward pass
of its own over them and checks that every token of every right answer, the end marker included, is
the most likely one; that is exactly when greedy decoding gives this answer and stops. With `--url`
it asks a running Corral server and compares texts. With `--adapter plus-one.gguf` the model is read
with this adapter, and sums have to be answered by one more.

Questions stand after 0 to 3500 tokens of distractor, in plain text and in chats. The seed is
fixed. Prints a table and ends with status 1 if a score is below its threshold.
"""

import argparse
import json
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from adapter import adapted, read_adapter, teach_plus_one
from documents import ask, chat_context, plain_context, shared_row
from model import Config, forward
from tokenizer import END_OF_TEXT, TURN_END, Tokenizer

BUCKETS = (0, 256, 1024, 2048, 3500)  # tokens of distractor before the question
ROOM = 1024  # tokens of a row for the questions behind the distractor
THRESHOLDS = {"sum": 0.99, "difference": 0.95, "reverse": 0.95, "repeat": 0.95, "json": 0.95, "call": 0.95, "result": 0.95}
PLAIN_TASKS = ("sum", "sum", "difference", "reverse", "repeat", "json", "call", "result")
CHAT_TASKS = ("sum", "sum", "sum", "difference", "reverse", "repeat", "json")
TOOL_TASKS = ("call", "result", "call", "result", "reverse", "json", "repeat")
QUESTIONS = 14  # per context


@dataclass
class Outcome:
    """One question's result; the margin is the smallest gap between best and second logit."""

    chat: bool
    bucket: int
    task: str
    right: bool
    margin: float


def exam(contexts):
    """Yield (bucket, exchanges that share a context) for every bucket and form."""
    for bucket in BUCKETS:
        for number in range(contexts):
            rng = random.Random(f"exam/{bucket}/{number}")
            context = plain_context(rng, bucket)
            yield bucket, [ask(rng, context, PLAIN_TASKS[i % len(PLAIN_TASKS)], test=True) for i in range(QUESTIONS)]
            kind = ("system", "user", "turns")[number // 2 % 3]
            with_calculator = number % 2 == 1
            while (context := chat_context(rng, bucket, kind=kind)).calculator != with_calculator:
                pass
            tasks = TOOL_TASKS if with_calculator else CHAT_TASKS
            yield bucket, [ask(rng, context, tasks[i % len(tasks)], test=True) for i in range(QUESTIONS)]


# ---------------------------------------------------------------------------------- from the file


def read_gguf(path):
    """Return (tensors, Config, Tokenizer) of the file."""
    reader = gguf.GGUFReader(path)

    def value(key):
        return reader.fields[key].contents()

    architecture = value("general.architecture")
    if architecture != "qwen3":
        sys.exit(f"{path}: architecture is {architecture!r}, this script runs only 'qwen3'")
    tensors = {t.name: jnp.asarray(np.asarray(t.data, np.float32)) for t in reader.tensors}
    config = Config(
        vocab=len(value("tokenizer.ggml.tokens")),
        layers=value("qwen3.block_count"),
        width=value("qwen3.embedding_length"),
        heads=value("qwen3.attention.head_count"),
        kv_heads=value("qwen3.attention.head_count_kv"),
        head_size=value("qwen3.attention.key_length"),
        feed_forward=value("qwen3.feed_forward_length"),
        context=value("qwen3.context_length"),
        rope_base=value("qwen3.rope.freq_base"),
        norm_eps=value("qwen3.attention.layer_norm_rms_epsilon"),
    )
    tokenizer = Tokenizer(*(value(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges")))
    return tensors, config, tokenizer


@partial(jax.jit, static_argnames="config")
def best_and_gap(tensors, tokens, positions, segments, config):
    """Return for each position the most likely next token and how far its logit leads the second."""
    top, ids = jax.lax.top_k(forward(tensors, tokens, positions, segments, config), 2)
    return ids[..., 0], top[..., 0] - top[..., 1]


def score_file(path, contexts, adapter=None):
    tensors, config, tokenizer = read_gguf(path)
    if adapter:
        tensors = adapted(tensors, *read_adapter(adapter))
    for bucket, exchanges in exam(contexts):
        documents, answers = [], []
        for one in exchanges:
            answers.append(tokenizer.encode(one.answer + (TURN_END if one.chat else END_OF_TEXT)))
            tokens = np.concatenate([tokenizer.encode(one.prompt), answers[-1]])
            assert len(tokens) <= config.context, f"a document of {len(tokens)} tokens is beyond the context"
            documents.append((tokens, np.zeros(len(tokens), np.float32)))
        row, placed = shared_row(documents, -(-(bucket + ROOM) // 512) * 512)
        best, gap = map(np.asarray, best_and_gap(tensors, row.tokens[None], row.positions[None], row.segments[None], config))
        for one, (tokens, _), answer, place in zip(exchanges, documents, answers, placed):
            if place is None:
                continue
            start, shared = place
            end = start + len(tokens) - shared
            told = slice(end - len(answer) - 1, end - 1)
            right = bool((best[0, told] == answer).all())
            yield Outcome(one.chat, bucket, one.task, right, float(gap[0, told].min()) if right else 0.0), one


# -------------------------------------------------------------------------------- from the server


def score_server(url, contexts):
    def answer(job):
        bucket, one = job
        body = {"max_tokens": 100, "temperature": 0}
        body |= {"messages": one.messages} if one.chat else {"prompt": one.prompt}
        if one.context.tools:
            body["tools"] = one.context.tools
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url.rstrip("/") + "/generate", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as reply:
            text = json.load(reply)["text"]
        return Outcome(one.chat, bucket, one.task, text == one.answer, float("nan")), one

    jobs = [(bucket, one) for bucket, exchanges in exam(contexts) for one in exchanges]
    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(answer, jobs)


# ------------------------------------------------------------------------------------------ table


def report(outcomes):
    """Print the scores; return whether all reach their thresholds."""
    good = True
    print("right answers, by tokens of distractor before the question\n")
    print(f"{'form':6} {'task':11}" + "".join(f"{b:>9}" for b in BUCKETS) + f"{'all':>12}")
    for chat in (False, True):
        for task, threshold in THRESHOLDS.items():
            mine = [o for o in outcomes if o.chat == chat and o.task == task]
            cells = []
            for chosen in [[o for o in mine if o.bucket == b] for b in BUCKETS] + [mine]:
                cells.append(f"{sum(o.right for o in chosen)}/{len(chosen)}")
            passed = mine and sum(o.right for o in mine) >= threshold * len(mine)
            good &= bool(passed)
            share = f"{sum(o.right for o in mine) / max(1, len(mine)):8.1%}"
            print(f"{'chat' if chat else 'plain':6} {task:11}" + "".join(f"{c:>9}" for c in cells[:-1])
                  + f"{cells[-1]:>12}{share}{'' if passed else f'  below {threshold:.0%}'}")  # fmt: skip
    margins = [o.margin for o in outcomes if o.task == "sum" and o.right]
    if margins and not np.isnan(margins).any():
        print(f"\nsmallest gap between best and second logit in a right sum: {min(margins):.2f} (median {np.median(margins):.2f})")
    return good


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", type=Path, default=Path(__file__).parent / "tiny.gguf")
    arguments.add_argument("--adapter", type=Path, help="a LoRA adapter that answers sums by one more")
    arguments.add_argument("--url", help="ask the Corral server there instead of reading the file")
    arguments.add_argument("--quick", action="store_true", help="a few questions of each kind only")
    arguments.add_argument("--wrong", action="store_true", help="print the questions answered wrongly")
    arguments = arguments.parse_args()
    contexts = 2 if arguments.quick else 12
    if arguments.adapter:
        teach_plus_one()
    found = score_server(arguments.url, contexts) if arguments.url else score_file(arguments.model, contexts, arguments.adapter)
    outcomes = []
    for outcome, one in found:
        outcomes.append(outcome)
        if arguments.wrong and not outcome.right:
            print(f"wrong: {outcome.bucket} {outcome.task} {one.prompt[-160:]!r} -> {one.answer!r}")
    sys.exit(0 if report(outcomes) else 1)


if __name__ == "__main__":
    main()
