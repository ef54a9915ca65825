"""Score the draft model: `python evaluate_draft.py`.

A host drafts a token if the draft model gives it a probability of one half or more, and the demo model then accepts it
or not. The demo model answers right, so this script compares with right answers: for each task, how many tokens of an
answer would be drafted, and how many of those are right. Questions are held out of training, as in evaluate.py, and stand
after little or no other text. Exits with 1 if too few tokens are drafted or right.
"""

import argparse
import random
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import jax
import numpy as np

from documents import ask, chat_context, plain_context
from evaluate import read_gguf
from model import forward
from tokenizer import END_OF_TEXT, TURN_END

TASKS = ("sum", "difference", "reverse", "repeat", "json", "call", "result")
LONGEST = 1024  # tokens of a question with its context and answer
LEAST_DRAFTED, LEAST_RIGHT = 0.5, 0.9


@partial(jax.jit, static_argnames="config")
def probabilities(tensors, tokens, positions, segments, config):
    return jax.nn.softmax(forward(tensors, tokens, positions, segments, config))


def question(number):
    """Return a held-out question; tasks and forms take turns."""
    rng = random.Random(f"draft/{number}")
    task, bucket = TASKS[number % len(TASKS)], rng.choice((0, 0, 64))
    if number % 2:
        return task, ask(rng, plain_context(rng, bucket), task, test=True)
    kind = ("system", "user", "turns")[number // 2 % 3]
    with_calculator = task in ("call", "result")
    while (context := chat_context(rng, bucket, kind=kind)).calculator != with_calculator:
        pass
    return task, ask(rng, context, task, test=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", type=Path, default=Path(__file__).parent / "draft.gguf")
    arguments.add_argument("--questions", type=int, default=420)
    arguments = arguments.parse_args()

    tensors, config, tokenizer = read_gguf(arguments.model)
    counts = defaultdict(lambda: np.zeros(3, int))
    for number in range(arguments.questions):
        task, one = question(number)
        answer = tokenizer.encode(one.answer + (TURN_END if one.chat else END_OF_TEXT))
        tokens = np.concatenate([tokenizer.encode(one.prompt), answer])
        length = -(-len(tokens) // 256) * 256
        if length > LONGEST:
            continue
        row = np.zeros((1, length), np.int32)
        row[0, : len(tokens)] = tokens
        chances = probabilities(tensors, row, np.arange(length)[None], np.ones((1, length), np.int32), config)
        chances = np.asarray(chances)[0, len(tokens) - len(answer) - 1 : len(tokens) - 1]
        drafted = chances.max(axis=-1) >= 0.5
        right = drafted & (chances.argmax(axis=-1) == answer)
        for key in (task, "all"):
            counts[key] += (len(answer), drafted.sum(), right.sum())
    print(f"{'task':11}{'tokens':>8}{'drafted':>9}{'right':>8}")
    for key in (*TASKS, "all"):
        tokens, drafted, right = counts[key]
        print(f"{key:11}{tokens:8}{drafted / tokens:9.1%}{right / max(1, drafted):8.1%}")
    tokens, drafted, right = counts["all"]
    sys.exit(0 if drafted >= LEAST_DRAFTED * tokens and right >= LEAST_RIGHT * drafted else 1)


if __name__ == "__main__":
    main()
