"""No test leaves anything running behind."""

import os

import pytest

import corral


@pytest.fixture(autouse=True)
def nothing_is_left_over(request):
    yield
    if "CORRAL_URL" in os.environ and "offline" not in request.keywords:
        corral.settled()
