"""The interface of `corral_sdk` for programs outside a plugin: a Corral host computes, over HTTP.

    import asyncio
    from corral_remote import Model, connect

    async def main():
        async with connect("http://127.0.0.1:8080/sessions"):
            model = await Model.open()
            print(await model.sequence("12+7=").generate(max_tokens=8).text())

    asyncio.run(main())

The names are those of `corral_sdk`, so code moves into a plugin with another import. A plugin's modules also run as they are
while a session is open. A thread of the session sends and receives, and renews the lease, also while the program computes.

Functions without `await` block the calling thread for a round trip if they need the host: `tokenize`, `detokenize`,
`request_counts`, the methods of a matcher, `available_models` and `remaining_budget`. The others only send.
"""

import corral_sdk
from corral_sdk import *  # noqa: F403
from corral_sdk import _host as _sdk_host

from ._host import REMOTE
from ._session import Session, connect
from .errors import Disconnected, TimedOut
from .types import (
    Budget,
    Candidate,
    Chunk,
    Distribution,
    Finish,
    ModelInfo,
    Outcome,
    RequestCounts,
    Statistics,
    TokenLogprobs,
)

# A script of `corral_sdk.testing` takes precedence while it runs.
_sdk_host.install(REMOTE)

__all__ = [
    "Budget",
    "Candidate",
    "Chunk",
    "Disconnected",
    "Distribution",
    "Finish",
    "ModelInfo",
    "Outcome",
    "RequestCounts",
    "Session",
    "Statistics",
    "TimedOut",
    "TokenLogprobs",
    "connect",
]
__all__ += corral_sdk.__all__
