"""Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is
`src/lib.rs`."""

from corral_sdk import Model, Request, Response, fields, handler


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        prompt=fields.string(),
        n=fields.integer(8, least=1, most=64),
        temperature=fields.number(1.0),
        seed=fields.integer(0, most=2**52),
        max_tokens=fields.integer(64),
        ignore_eos=fields.boolean(False),
    )
    prompt = (await Model.open()).sequence(body.prompt)
    # All generations start before the first is read, so that they share steps. They are forks of one sequence:
    # the host computes the prompt once.
    generations = [
        prompt.fork().generate(
            body.max_tokens,
            temperature=body.temperature,
            seed=body.seed + index,
            logprobs=0,
            ignore_eos=body.ignore_eos,
        )
        for index in range(body.n)
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
