import app
from corral_sdk import Request
from corral_sdk.testing import Script


def test_prompt_gets_a_completion():
    script = Script({"12+7=": "19"})
    answered = script.call(app.handle, Request("POST", "/", body="12+7="))
    assert (answered.status, answered.body) == (200, b"19")
