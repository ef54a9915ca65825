"""Train the adapter that adds one: `python train_adapter.py` writes plus-one.gguf from tiny.gguf.

The model stays as it is; only the adapter's small matrices learn, by Adam. Most of what it reads are
sums, in tables, questions and behind other text; the rest keeps the other tasks as they were.
A run that was stopped goes on from its checkpoint.
"""

import argparse
import pickle
import random
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from adapter import adapted, initial_adapter, teach_plus_one, write_adapter
from documents import arithmetic_table, bare_document, long_row, short_document, short_row
from evaluate import read_gguf
from train import loss_of

# Share of the steps, rows, tokens per row and maker of a row.
KINDS = (
    (0.6, 12, 128, lambda rng: short_row(rng, 128, rng.choices(SHORT, (0.35, 0.45, 0.2))[0])),
    (0.25, 1, 1536, lambda rng: long_row(rng, 1536, 4.0, 0.5)),
    (0.15, 3, 512, lambda rng: short_row(rng, 512, lambda rng: short_document(rng, 480))),
)
SHORT = (
    lambda rng: arithmetic_table(rng, rng.choice((50, 128))),
    lambda rng: bare_document(rng, ("sum", "sum", "sum", "difference")),
    lambda rng: bare_document(rng, ("repeat", "reverse", "json", "call", "result")),
)
STEPS = 900
RATE = ((0, 0.0), (30, 4e-3), (500, 4e-3), (STEPS, 0.0))  # (step, rate), linear between
SAVED = 25  # steps between two checkpoints


def make_batch(step, seed):
    """Return the arrays of the step's batch, which follow from its number and the seed."""
    rng = random.Random(f"adapter/{seed}/{step}")
    _, rows, _, make_row = rng.choices(KINDS, [kind[0] for kind in KINDS])[0]
    made = [make_row(rng) for _ in range(rows)]
    return tuple(np.stack([getattr(r, f) for r in made]) for f in ("tokens", "positions", "segments", "weights"))


@partial(jax.jit, static_argnames="config")
def train_step(adapter, state, tensors, batch, rate, step, config):
    """Update the adapter and Adam's two means by one batch."""

    def loss(adapter):
        return loss_of(adapted(tensors, adapter), batch, config)

    value, gradients = jax.value_and_grad(loss)(adapter)
    t = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], gradients)
    second = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, state[1], gradients)

    def moved(p, m, v):
        return p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.98**t)) + 1e-8)

    return jax.tree.map(moved, adapter, first, second), (first, second), value


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).parent
    arguments.add_argument("--model", type=Path, default=here / "tiny.gguf")
    arguments.add_argument("--checkpoint", type=Path, default=Path("adapter.pkl"), help="saved and resumed from here")
    arguments.add_argument("--output", type=Path, default=here / "plus-one.gguf")
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()

    teach_plus_one()
    tensors, config, _ = read_gguf(arguments.model)
    adapter, first, spent = initial_adapter(tensors, arguments.seed), 0, 0.0
    state = (jax.tree.map(np.zeros_like, adapter), jax.tree.map(np.zeros_like, adapter))
    if arguments.checkpoint.exists():
        adapter, state, first, spent = pickle.loads(arguments.checkpoint.read_bytes())
    print(f"{sum(a.size + b.size for a, b in adapter.values()):,} parameters, step {first} of {STEPS}", flush=True)

    started, losses = time.time() - spent, []
    for step in range(first, STEPS):
        rate = float(np.interp(step, *zip(*RATE)))
        adapter, state, loss = train_step(adapter, state, tensors, make_batch(step, arguments.seed), rate, step, config)
        losses.append(float(loss))
        done = step + 1
        if done % SAVED == 0 or done == STEPS:
            spent = time.time() - started
            print(f"step {done:4}  {spent / 60:5.1f} min  loss {np.mean(losses):.4f}", flush=True)
            losses = []
            new = arguments.checkpoint.with_suffix(".new")
            new.write_bytes(pickle.dumps(jax.tree.map(np.asarray, (adapter, state, done, spent))))
            new.replace(arguments.checkpoint)
    write_adapter(arguments.output, adapter)


if __name__ == "__main__":
    main()
