"""Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each distribution and
chooses the token itself. The Rust form is `src/lib.rs`."""

import math
import random

from corral_sdk import Model, Problem, Request, Response, handler, softmax

CANDIDATES = 256
"""The most likely tokens among which to choose."""


@handler
async def handle(request: Request) -> Response:
    body = {"epsilon": 0.002, "temperature": 1.0, "seed": 0, "max_tokens": 64, **await request.json()}
    if not 0 <= body["epsilon"] <= 1:
        raise Problem(400, "invalid-epsilon", f"`epsilon` is {body['epsilon']}; expected 0 to 1")
    model = await Model.open()
    sequence = model.sequence(body["prompt"])
    start, generator, considered, requests = len(sequence), random.Random(body["seed"]), 0, 0
    while len(sequence) - start < body["max_tokens"]:
        distribution = await sequence.next(CANDIDATES, statistics=True)
        requests += 1
        candidates = eta(distribution, body["epsilon"])
        considered += len(candidates)
        token = choose(candidates, body["temperature"], generator)
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
