import app
from corral_sdk import Request
from corral_sdk.testing import Script

CHAT = [{"role": "user", "content": "12+7="}]


def ask(body):
    prompt = "<|im_start|>user\n12+7=<|im_end|>\n<|im_start|>assistant\n"
    return Script({prompt: "19"}).call(app.handle, Request("POST", "/", body=body))


def test_question_is_answered():
    assert ask({"messages": CHAT}).json() == {"text": "19"}
    events = ask({"messages": CHAT, "stream": True}).events()
    assert events == [{"text": "1"}, {"text": "9"}, {"generated_tokens": 3}]


def test_message_without_content_is_refused():
    assert ask({"messages": [{"role": "user"}]}).status == 400
