"""The workloads `none` and `top` of `src/lib.rs`, for `corral-bench languages`."""

from corral_sdk import Model, Request, Response, handler

TOP = 64
"""Candidates per token of `top`."""


@handler
async def handle(request: Request) -> Response:
    count = int(request.query["count"])
    prompt = await request.text()
    done = count if request.path.endswith("/none") else await top(prompt, count)
    return Response.text(str(done))


async def top(prompt: str, count: int) -> int:
    sequence = (await Model.open()).sequence(prompt)
    start = len(sequence)
    for _ in range(count):
        distribution = await sequence.next(TOP)
        sequence.append([distribution.candidates[0].token])
    return len(sequence) - start
