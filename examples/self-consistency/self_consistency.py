"""Samples several answers and returns the most frequent one (Wang et al., 2022). Samples no more than a majority
needs. The Rust form is `src/lib.rs`."""

import re
from collections import Counter

from corral_sdk import Model, Request, Response, fields, handler


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        prompt=fields.string(),
        votes=fields.integer(9, least=1, most=63),
        temperature=fields.number(0.7),
        seed=fields.integer(0, most=2**52),
        max_tokens=fields.integer(64),
        ignore_eos=fields.boolean(False),
    )
    prompt = (await Model.open()).sequence(body.prompt)
    # Counts in the order of the first votes: of equal ones, `most_common` has the earliest first.
    tally: Counter[str] = Counter()
    tokens = 0
    while wave := missing(tally, body.votes):
        seeds = range(body.seed + tally.total(), body.seed + tally.total() + wave)
        generations = [
            prompt.fork().generate(
                body.max_tokens, temperature=body.temperature, seed=seed, ignore_eos=body.ignore_eos
            )
            for seed in seeds
        ]
        for generation in generations:
            tally[answer(await generation.text())] += 1
            tokens += (await generation.outcome()).generated_tokens
    best, votes = tally.most_common(1)[0]
    return Response.json(
        {
            "answer": best,
            "votes": votes,
            "samples": tally.total(),
            "generated_tokens": tokens,
            "answers": [{"answer": one, "votes": count} for one, count in tally.most_common()],
        }
    )


def missing(tally, votes):
    """Answers that the leading one still needs for a majority, if as many may be asked for."""
    leading = tally.most_common(1)[0][1] if tally else 0
    return min(votes // 2 + 1 - leading, votes - tally.total())


def answer(text):
    """The last number of a text, so that answers can differ in their reasoning; without one, the text."""
    numbers = re.findall(r"-?\d+", text)
    return numbers[-1] if numbers else text.strip()
