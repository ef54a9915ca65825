"""/tokenize and /detokenize, compatible with llama.cpp's server."""

import pytest

from corral import post, tokens


def text(numbers):
    status, _, value = post("/detokenize", {"tokens": numbers})
    assert status == 200, value
    return value["content"]


@pytest.mark.parametrize("content", ["", "12+7=", "The quiet owl.\n", "é and 木 and 🦉", '{"a": "<b>"}'])
def test_tokenize_round_trip(content):
    assert text(tokens(content)) == content


def test_control_tokens_parse_if_allowed():
    (number,) = tokens("<|im_start|>", parse_special=True)
    letters = tokens("<|im_start|>", parse_special=False)
    assert len(letters) == len("<|im_start|>")
    assert number not in letters


def test_pieces_come_with_tokens():
    plain = tokens("12+é")
    pieces = tokens("12+é", with_pieces=True)
    assert [piece["id"] for piece in pieces] == plain
    assert [piece["piece"] for piece in pieces] == ["1", "2", "+", "é"]
    # A piece that is not valid UTF-8 is given as bytes.
    owl = tokens("🦉", with_pieces=True)
    assert [piece["piece"] for piece in owl] == [[byte] for byte in "🦉".encode()]


def test_long_texts_have_all_tokens():
    most = 4 << 20
    part = "The quiet owl.\n" * (most // 30)
    for content in [part + part, [part, part]]:
        assert len(tokens(content)) == 2 * len(part)
    for content in ["x" * (most + 1), [part, part, "x" * 30]]:
        status, _, value = post("/tokenize", {"content": content})
        assert (status, value["error"]["code"], value["error"]["param"]) == (413, "request-too-large", "content")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": 5}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [1_000_000]}),
        ("/detokenize", {"tokens": [-1]}),
    ],
)
def test_invalid_input_is_refused(path, body):
    status, _, value = post(path, body)
    assert status == 400, value
    assert value["error"]["type"] == "invalid_request_error"
