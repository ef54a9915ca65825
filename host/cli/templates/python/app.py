"""Completes the request's body with the deployment's model."""

from corral_sdk import Model, Request, Response, handler


@handler
async def handle(request: Request) -> Response:
    model = await Model.open()
    sequence = model.sequence(await request.text())
    return Response.text(await sequence.generate(max_tokens=64).text())
