import openai
import pytest

from corral import MODEL, client, send


def test_models_are_listed():
    models = client().models.list()
    assert models.object == "list"
    (model,) = models.data
    assert (model.id, model.object) == (MODEL, "model")
    assert model.created >= 0
    assert model.owned_by


def test_model_is_found_by_name():
    assert client().models.retrieve(MODEL).id == MODEL


def test_head_is_allowed():
    for path in ["/v1/models", f"/v1/models/{MODEL}/"]:
        connection, answer = send(path, None, method="HEAD")
        assert (answer.status, answer.read()) == (200, b"")
        connection.close()


def test_unknown_model_gets_404():
    with pytest.raises(openai.NotFoundError) as error:
        client().models.retrieve("large")
    assert error.value.code == "model_not_found"
