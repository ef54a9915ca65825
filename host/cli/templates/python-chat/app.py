"""Answers a chat in ChatML, the format of Qwen's models. For another model, change `prompt`."""

from typing import Any

from corral_sdk import EventWriter, Model, Request, Response, Sequence, fields, handler


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        messages=fields.array(fields.value(), least=1),
        max_tokens=fields.integer(256),
        stream=fields.boolean(False),
    )
    generation = prompt(await Model.open(), body.messages).generate(body.max_tokens)
    if not body.stream:
        return Response.json({"text": await generation.text()})

    async def end(events: EventWriter) -> None:
        outcome = await generation.outcome()
        await events.json({"generated_tokens": outcome.generated_tokens})

    return Response.text_events(generation, lambda text: {"text": text}, end)


def prompt(model: Model, messages: list[Any]) -> Sequence:
    """The messages, and the beginning of the answer. Control tokens stand only around a message, never inside."""
    sequence = model.sequence()
    for message in messages:
        part = fields.read(message, role=fields.string(), content=fields.string())
        sequence.append("<|im_start|>", special=True).append(f"{part.role}\n{part.content}")
        sequence.append("<|im_end|>", special=True).append("\n")
    return sequence.append("<|im_start|>", special=True).append("assistant\n")
