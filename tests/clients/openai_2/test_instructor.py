"""Instructor."""

import instructor
from pydantic import BaseModel

from corral import MODEL, client, user


class Card(BaseModel):
    name: str
    age: int


def ask(mode, method="create", **more):
    patched = instructor.from_openai(client(), mode=mode)
    asked = {"model": MODEL, "messages": user("Ada is 36 years old"), "temperature": 0, "max_retries": 0}
    return getattr(patched.chat.completions, method)(**asked, **more)


def test_schema_gives_the_right_object():
    card = ask(instructor.Mode.JSON_SCHEMA, response_model=Card)
    assert (card.name, card.age) == ("Ada", 36)


def test_streamed_object_grows():
    parts = list(ask(instructor.Mode.JSON_SCHEMA, "create_partial", response_model=Card))
    assert (parts[-1].name, parts[-1].age) == ("Ada", 36)


def test_forced_tool_gives_an_object():
    # The demo model calls only its calculator of its own accord; the constraint gives the call its form.
    assert isinstance(ask(instructor.Mode.TOOLS, response_model=Card, max_tokens=300), Card)
