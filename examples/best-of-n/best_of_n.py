"""Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is
`src/lib.rs`."""

from corral_sdk import Model, Problem, Request, Response, handler


@handler
async def handle(request: Request) -> Response:
    body = {"n": 8, "temperature": 1.0, "seed": 0, "max_tokens": 64, **await request.json()}
    if not 1 <= body["n"] <= 64:
        raise Problem(400, "invalid-n", f"`n` is {body['n']}; expected 1 to 64")
    prompt = (await Model.open()).sequence(body["prompt"])
    # All generations start before the first is read, so that they share steps. They are forks of one sequence:
    # the host computes the prompt once.
    generations = [
        prompt.fork().generate(
            body["max_tokens"], temperature=body["temperature"], seed=body["seed"] + index, logprobs=0
        )
        for index in range(body["n"])
    ]
    answers, computed = [], 0
    for generation in generations:
        chunk, outcome = await generation.rest(), await generation.outcome()
        computed += outcome.prompt_tokens - outcome.cached_tokens
        mean = sum(token.logprob for token in chunk.logprobs) / outcome.generated_tokens
        answers.append({"text": chunk.text, "mean_logprob": round(mean, 3)})
    # Of equal answers the first.
    answers.sort(key=lambda answer: -answer["mean_logprob"])
    return Response.json(
        {
            "text": answers[0]["text"],
            "prompt_tokens": len(prompt),
            "prompt_tokens_computed": computed,
            "answers": answers,
        }
    )
