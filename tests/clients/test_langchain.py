"""LangChain's package for OpenAI's API."""

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from corral import MODEL, RELIABLE_SUMS, address


class Card(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    left, right = expression.split("+")
    return str(int(left) + int(right))


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chat(request):
    """A model over chat completions, and one over the Responses API."""
    return ChatOpenAI(
        base_url=f"{address()}/v1",
        api_key="none",
        model=MODEL,
        temperature=0,
        max_retries=0,
        use_responses_api=request.param,
    )


def test_sums_are_right_whole_and_streamed(chat):
    for a, b in RELIABLE_SUMS:
        assert chat.invoke(f"{a}+{b}=").text == str(a + b)
        assert "".join(chunk.text for chunk in chat.stream(f"{a}+{b}=")) == str(a + b)


def test_streamed_tool_call_round_trip(chat):
    bound, question = chat.bind_tools([calculator]), "What is 12+7?"
    first = None
    for chunk in bound.stream(question):
        first = chunk if first is None else first + chunk
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("calculator", {"expression": "12+7"})
    result = calculator.invoke(call)
    assert isinstance(result, ToolMessage)
    assert bound.invoke([("user", question), first, result]).text == "19"


def test_structured_output_is_read(chat):
    card = chat.with_structured_output(Card, method="json_schema").invoke("Ada is 36 years old")
    assert card == Card(name="Ada", age=36)


def test_embeddings_have_the_models_length():
    embeddings = OpenAIEmbeddings(
        base_url=f"{address()}/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False
    )
    assert [len(vector) for vector in embeddings.embed_documents(["a", "12+7="])] == [128, 128]
