"""Train the tiny model from scratch: `python train.py` does the whole run and writes tiny.gguf. `python train.py --draft`
trains the smaller draft.gguf on the same data: a draft model for speculative decoding.

The run is a fixed number of steps in phases of growing context (see Run). Step number
and seed decide everything a step sees, so a run that was stopped goes on from its checkpoint as if
it had not been. Matrices are updated by Muon (orthogonalized momentum), embedding and norm weights by
Adam; the rate rises, stays and falls to zero, and in the run of tiny.gguf does so four times more, lower, for the last
phases, which train the hardest questions: tools and texts to copy far from the question, and sums
behind long texts.
"""

import argparse
import pickle
import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from documents import arithmetic_table, bare_document, long_row, short_document, short_row, tools_row
from export import write_gguf
from model import Config, forward, initial_parameters

# A batch shape is (rows, tokens per row, maker of a row), all of about 4096 tokens. A phase gives
# each shape's share of its steps.
SHAPES = {
    "mixed": (32, 128, lambda rng: mixed_row(rng, 128)),
    "copies": (32, 128, lambda rng: short_row(rng, 128, SHORT_DOCUMENTS[2])),
    "chats": (8, 512, lambda rng: short_row(rng, 512, lambda rng: short_document(rng, 480))),
    "tools": (4, 1024, lambda rng: tools_row(rng, 1024, 6.0)),
    "pages": (2, 1536, lambda rng: long_row(rng, 1536, 4.0, 0.65)),
    "books": (1, 4096, lambda rng: long_row(rng, 4096, 4.0, 0.65)),
}
MUON_RATE, ADAM_RATE = 0.02, 4e-3
WEIGHT_DECAY = 0.05


@dataclass(frozen=True)
class Run:
    """A training run. The rate is a list of (step, factor), linear between."""

    config: Config
    output: str
    name: str
    phases: tuple
    rate: tuple
    # The result is the mean of the weights at these steps.
    averaged: tuple

    @property
    def steps(self):
        return sum(steps for steps, _ in self.phases)


# The ends of the last three short phases are averaged: where each has forgotten a little of something, the mean has not
# (stochastic weight averaging).
TINY = Run(
    Config(),
    "tiny.gguf",
    "Corral Tiny",
    (
        (500, {"mixed": 1.0}),
        (500, {"mixed": 0.6, "chats": 0.1, "tools": 0.1, "pages": 0.2}),
        (1500, {"mixed": 0.42, "chats": 0.06, "tools": 0.12, "pages": 0.3, "books": 0.1}),
        (450, {"mixed": 0.25, "copies": 0.15, "tools": 0.12, "pages": 0.28, "books": 0.2}),
        (150, {"mixed": 0.25, "pages": 0.45, "books": 0.3}),
        (150, {"mixed": 0.5, "pages": 0.5}),
        (80, {"copies": 0.3, "mixed": 0.2, "pages": 0.5}),
    ),
    ((0, 0.0), (60, 1.0), (900, 1.0), (2500, 0.0), (2530, 0.35), (2950, 0.0), (2960, 0.15), (3100, 0.0), (3110, 0.2), (3250, 0.0), (3255, 0.12), (3330, 0.0)),
    (3100, 3250, 3330),
)
DRAFT = Run(
    Config(layers=2, width=64, heads=2, kv_heads=1, feed_forward=192),
    "draft.gguf",
    "Corral Tiny Draft",
    (
        (500, {"mixed": 1.0}),
        (400, {"mixed": 0.7, "copies": 0.15, "chats": 0.15}),
    ),
    ((0, 0.0), (40, 1.0), (500, 1.0), (900, 0.0)),
    (900,),
)


COPY_TASKS = ("repeat", "repeat", "reverse", "json", "call", "result")
SHORT_DOCUMENTS = (
    lambda rng: arithmetic_table(rng, rng.choice((50, 128))),
    lambda rng: bare_document(rng, ("sum", "difference")),
    lambda rng: bare_document(rng, COPY_TASKS),
    lambda rng: short_document(rng, 110),
)


def mixed_row(rng, length):
    """Return a row of one of the kinds of short documents; a batch of such rows holds all of them."""
    return short_row(rng, length, rng.choices(SHORT_DOCUMENTS, (0.4, 0.25, 0.2, 0.15))[0])


def shape_of_step(phases, step, rng):
    for steps, shares in phases:
        if step < steps:
            return rng.choices(list(shares), shares.values())[0]
        step -= steps
    raise ValueError("the step lies beyond the last phase")


def make_batch(phases, step, seed):
    """Return (shape name, the arrays of the step's batch)."""
    rng = random.Random(f"{seed}/{step}")
    name = shape_of_step(phases, step, rng)
    rows, _, make_row = SHAPES[name]
    made = [make_row(rng) for _ in range(rows)]
    return name, tuple(np.stack([getattr(r, f) for r in made]) for f in ("tokens", "positions", "segments", "weights"))


def loss_of(parameters, batch, config):
    """Return the weighted mean cross-entropy of each token given those before it in its document."""
    tokens, positions, segments, weights = batch
    logits = forward(parameters, tokens, positions, segments, config)[:, :-1]
    chance = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]
    weights = weights[:, 1:]
    return -jnp.sum(chance * weights) / jnp.sum(weights)


def orthogonal(g):
    """Return roughly the nearest orthogonal matrix to g (five Newton-Schulz steps, Jordan 2024)."""
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


def is_matrix(name):
    return name.startswith("blk.") and "norm" not in name


@partial(jax.jit, static_argnames="config", donate_argnums=(0, 1))
def train_step(parameters, state, batch, rate, step, config):
    """Update parameters and optimizer state by one batch; `rate` is the schedule's factor."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch, config)
    new_parameters, new_state = {}, {}
    for name, p in parameters.items():
        g, (m, v) = gradients[name], state[name]
        if is_matrix(name):
            m = 0.95 * m + g
            update = orthogonal(g + 0.95 * m) * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
            p = p * (1 - MUON_RATE * rate * WEIGHT_DECAY) - MUON_RATE * rate * update
        else:
            m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
            t = step + 1
            update = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.98**t)) + 1e-9)
            p = p - ADAM_RATE * rate * update
        new_parameters[name], new_state[name] = p, (m, v)
    return new_parameters, new_state, loss


def rate_at(run, step):
    return float(np.interp(step, *zip(*run.rate)))


def save(path, **content):
    temporary = path.with_suffix(".new")
    temporary.write_bytes(pickle.dumps(jax.tree.map(np.asarray, content)))
    temporary.replace(path)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--draft", action="store_true", help="train the draft model")
    arguments.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pkl"), help="saved and resumed from here")
    arguments.add_argument("--output", type=Path, help="default: tiny.gguf or draft.gguf beside this script")
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()

    run = DRAFT if arguments.draft else TINY
    config, steps = run.config, run.steps
    parameters, first, spent, ends = initial_parameters(config, arguments.seed), 0, 0.0, []
    state = {name: (np.zeros_like(p), np.zeros_like(p)) for name, p in parameters.items()}
    if arguments.checkpoint.exists():
        saved = pickle.loads(arguments.checkpoint.read_bytes())
        parameters, state = saved["parameters"], saved["state"]
        first, spent, ends = int(saved["step"]), float(saved["spent"]), saved["ends"]
    print(f"{sum(p.size for p in parameters.values()):,} parameters, step {first} of {steps}", flush=True)

    started, losses = time.time() - spent, {}
    for step in range(first, steps):
        name, batch = make_batch(run.phases, step, arguments.seed)
        if losses:
            jax.block_until_ready(parameters)
        parameters, state, loss = train_step(parameters, state, batch, rate_at(run, step), step, config)
        losses.setdefault(name, []).append(loss)
        done = step + 1
        if done in run.averaged:
            ends.append({name: np.asarray(p) for name, p in parameters.items()})
        if done % 50 == 0 or done == steps:
            shown = "  ".join(f"{n} {np.mean(v):.4f}" for n, v in sorted(losses.items()))
            spent = time.time() - started
            left = spent / done * (steps - done)
            print(f"step {done:5}  {spent / 60:5.1f} min, {left / 60:5.1f} left  loss: {shown}", flush=True)
            losses = {}
            save(arguments.checkpoint, parameters=parameters, state=state, ends=ends, step=done, spent=spent)
    result = {name: np.mean([end[name] for end in ends], axis=0) for name in parameters}
    write_gguf(arguments.output or Path(__file__).parent / run.output, result, config, run.name)


if __name__ == "__main__":
    main()
