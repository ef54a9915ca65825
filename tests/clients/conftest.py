"""After each test, waits until its server is idle."""

import os

import pytest

import corral


@pytest.fixture(autouse=True)
def server_becomes_idle(request):
    yield
    if "CORRAL_URL" in os.environ and "offline" not in request.keywords:
        corral.wait_until_idle()
