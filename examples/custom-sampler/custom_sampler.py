"""Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each distribution and
chooses the token itself. The Rust form is `src/lib.rs`."""

import math
import random

from corral_sdk import Model, Request, Response, fields, handler, softmax

CANDIDATES = 256
"""The most likely tokens among which to choose."""


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        prompt=fields.string(),
        epsilon=fields.number(0.002, least=0, most=1),
        temperature=fields.number(1.0, least=0),
        seed=fields.integer(0, most=2**52),
        max_tokens=fields.integer(64),
    )
    model = await Model.open()
    sequence = model.sequence(body.prompt)
    start, generator, considered, requests = len(sequence), random.Random(body.seed), 0, 0
    while len(sequence) - start < body.max_tokens:
        distribution = await sequence.next(CANDIDATES, statistics=True)
        requests += 1
        candidates = eta(distribution, body.epsilon)
        considered += len(candidates)
        token = choose(candidates, body.temperature, generator)
        if token in model.info.end_of_generation:
            break
        sequence.append([token])
    text = model.detokenize(sequence.tokens(start))
    return Response.json({"text": text, "distributions": requests, "considered_tokens": considered})


def eta(distribution, epsilon):
    """Drops tokens that are unlikely by themselves and for a distribution of this entropy. Keeps the first."""
    statistics = distribution.statistics
    least = min(epsilon, math.sqrt(epsilon) * math.exp(-statistics.entropy))
    first, *others = distribution.candidates
    probability = lambda candidate: math.exp(candidate.logit - statistics.log_normalizer)
    return [first, *(candidate for candidate in others if probability(candidate) >= least)]


def choose(candidates, temperature, generator):
    if temperature == 0:
        return candidates[0].token
    weights = softmax([candidate.logit / temperature for candidate in candidates])
    return generator.choices([candidate.token for candidate in candidates], weights)[0]
