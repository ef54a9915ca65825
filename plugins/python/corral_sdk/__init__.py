"""Plugins for Corral in Python.

A plugin is an async function from a request to a response:

    from corral_sdk import Model, Request, Response, handler

    @handler
    async def handle(request: Request) -> Response:
        model = await Model.open()
        sequence = model.sequence(await request.text())
        return Response.text(await sequence.generate(max_tokens=64).text())

`corral_sdk.testing` replaces the host under pytest.
"""

from . import fields
from .errors import (
    Cancelled,
    ContextFull,
    Deadline,
    Error,
    Failed,
    Invalid,
    NotFound,
    NotGranted,
    Problem,
    Refused,
)
from .generation import Generation
from .grammar import Constraint, Matcher
from .http import EventWriter, Request, Response, handler
from .model import Model, available_models, configuration, remaining_budget
from .sampling import Dry, Penalties, choose, greedy, log_softmax, softmax, top_p
from .sequence import Sequence, next_many

__all__ = [
    "Cancelled",
    "Constraint",
    "ContextFull",
    "Deadline",
    "Dry",
    "Error",
    "EventWriter",
    "Failed",
    "Generation",
    "Invalid",
    "Matcher",
    "Model",
    "NotFound",
    "NotGranted",
    "Penalties",
    "Problem",
    "Refused",
    "Request",
    "Response",
    "Sequence",
    "available_models",
    "choose",
    "configuration",
    "fields",
    "greedy",
    "handler",
    "log_softmax",
    "next_many",
    "remaining_budget",
    "softmax",
    "top_p",
]
