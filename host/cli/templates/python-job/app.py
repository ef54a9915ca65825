"""Works through a list of prompts and streams each answer as an event."""

from typing import Any

from corral_sdk import Error, EventWriter, Generation, Model, Request, Response, fields, handler

MAX_PROMPTS = 10_000
# Prompts that are generated at once. The engine computes them in one batch.
MAX_CONCURRENT = 16


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        prompts=fields.array(fields.string(), least=1, most=MAX_PROMPTS), max_tokens=fields.integer(64)
    )
    model = await Model.open()

    async def write(events: EventWriter) -> None:
        for first in range(0, len(body.prompts), MAX_CONCURRENT):
            prompts = body.prompts[first : first + MAX_CONCURRENT]
            generations = [start(model, prompt, body.max_tokens) for prompt in prompts]
            for index, generation in enumerate(generations, first):
                await events.json({"prompt": index, **await finish(generation)})

    return Response.events(write)


# A prompt that fails does not stop the job.


def start(model: Model, prompt: str, max_tokens: int) -> Generation | Error:
    try:
        return model.sequence(prompt).generate(max_tokens)
    except Error as error:
        return error


async def finish(generation: Generation | Error) -> dict[str, Any]:
    try:
        if isinstance(generation, Error):
            raise generation
        return {"text": await generation.text()}
    except Error as error:
        return {"error": error.detail}
