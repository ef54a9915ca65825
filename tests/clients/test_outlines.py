"""Outlines, which constrains the answers of a server."""

from typing import Literal

import outlines
import pytest
from pydantic import BaseModel

from corral import MODEL, client


class Card(BaseModel):
    name: str
    age: int


GREEDY = {"temperature": 0}


def models():
    return [outlines.from_openai(client(), MODEL), outlines.from_vllm(client(), MODEL)]


@pytest.mark.parametrize("which", [0, 1], ids=["openai", "vllm"])
def test_answers_are_right_and_follow_the_schema(which):
    model = models()[which]
    assert model("12+7=", **GREEDY) == "19"
    assert "".join(model.stream("12+7=", **GREEDY)) == "19"
    assert Card.model_validate_json(model("Ada is 36 years old", Card, **GREEDY)) == Card(name="Ada", age=36)


def test_choices_and_expressions_constrain_the_answer():
    model = models()[1]
    assert model("12+7=", Literal["20", "19"], **GREEDY) == "19"
    assert model("12+7=", outlines.types.Regex("1[0-8]"), **GREEDY)[0] == "1"
