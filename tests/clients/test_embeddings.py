"""Embeddings."""

import math

import openai
import pytest

from corral import MODEL, client, tokens

TEXTS = ["The quiet owl", "looks at the river.", "12+7="]
WIDTH = 128


def embed(texts, **more):
    answer = client().embeddings.create(model=MODEL, input=texts, **more)
    assert answer.object == "list"
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return answer


def vectors(texts, **more):
    return [entry.embedding for entry in embed(texts, **more).data]


def close(one, other):
    return one == pytest.approx(other, abs=1e-3)


def test_text_has_a_vector():
    answer = embed("The quiet owl", encoding_format="float")
    (entry,) = answer.data
    assert (entry.object, len(entry.embedding)) == ("embedding", WIDTH)
    assert math.isclose(math.hypot(*entry.embedding), 1, abs_tol=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len("The quiet owl")


def test_base64_holds_the_same_floats():
    for one, other in zip(vectors(TEXTS, encoding_format="float"), vectors(TEXTS), strict=True):
        # The client requests base64 by default and decodes 32-bit floats.
        assert one == pytest.approx(list(other), rel=1e-6, abs=1e-7)
    raw = embed(TEXTS, encoding_format="base64").data
    assert all(isinstance(entry.embedding, str) for entry in raw)


def test_batch_equals_single_inputs():
    together = vectors(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert close(vectors(text)[0], vector)
        assert close(vectors([tokens(text)])[0], vector)
        assert close(vectors(tokens(text))[0], vector)
    assert not close(together[0], together[1])


@pytest.mark.parametrize(
    ("more", "param"),
    [({"input": []}, "input"), ({"input": 5}, "input"), ({"encoding_format": "hex"}, "encoding_format")],
)
def test_invalid_fields_are_refused_by_name(more, param):
    with pytest.raises(openai.BadRequestError) as error:
        client().embeddings.create(**{"model": MODEL, "input": "x", **more})
    assert error.value.param.startswith(param)
