import app
from corral_sdk import Deadline, Request
from corral_sdk.testing import Script


def test_each_prompt_gets_an_event():
    script = Script({"1+1=": "2", "2+2=": Deadline(), "3+3=": "6"})
    request = Request("POST", "/", body={"prompts": ["1+1=", "2+2=", "3+3="]})
    assert script.call(app.handle, request).events() == [
        {"prompt": 0, "text": "2"},
        {"prompt": 1, "error": Deadline().detail},
        {"prompt": 2, "text": "6"},
    ]
