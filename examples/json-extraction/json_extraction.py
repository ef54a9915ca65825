"""Extracts data from texts as JSON that matches the caller's schema. A constraint keeps the model to the schema:
no answer is invalid, and none is asked for twice. The Rust form is `src/lib.rs`; it renders the model's own chat
template, this one writes ChatML."""

import json

from corral_sdk import Model, Request, Response, fields, handler


@handler
async def handle(request: Request) -> Response:
    body = await request.fields(
        texts=fields.array(fields.string(), least=1, most=64),
        # The host checks it.
        schema=fields.value(),
        instructions=fields.string(None),
        max_tokens=fields.integer(256),
    )
    model = await Model.open()
    # Compiled once for all texts. A malformed schema is a 400 with its mistake.
    constraint = await model.json_schema(body.schema)
    generations = []
    for text in body.texts:
        sequence = model.sequence()
        if body.instructions:
            turn(sequence, "system", body.instructions)
        turn(sequence, "user", text).append("<|im_start|>assistant\n", special=True)
        # The host computes the beginning that the prompts share once.
        generations.append(sequence.generate(body.max_tokens, constraint=constraint))
    return Response.json({"results": [await read(generation) for generation in generations]})


def turn(sequence, role, text):
    """Appends a message. Control tokens in its text are plain characters."""
    sequence.append(f"<|im_start|>{role}\n", special=True)
    return sequence.append(text).append("<|im_end|>\n", special=True)


async def read(generation):
    """The value, or an error if the limit cut it off."""
    text = await generation.text()
    try:
        return {"value": json.loads(text)}
    except ValueError:
        return {"error": "the JSON is longer than `max_tokens`", "text": text}
