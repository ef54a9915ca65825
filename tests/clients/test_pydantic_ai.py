"""Pydantic AI, over chat completions and the Responses API."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from corral import MODEL, address, async_client


class Card(BaseModel):
    name: str
    age: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request):
    return request.param(MODEL, provider=OpenAIProvider(openai_client=async_client()))


SETTINGS = {"temperature": 0}


def with_calculator(model):
    asked = []
    agent = Agent(model, model_settings=SETTINGS)

    @agent.tool_plain
    def calculator(expression: str) -> str:
        """Evaluates an arithmetic expression."""
        asked.append(expression)
        return "4711"

    return agent, asked


def test_agent_calls_its_tool(model):
    agent, asked = with_calculator(model)
    assert agent.run_sync("What is 12+7?").output == "4711"
    assert asked == ["12+7"]


def test_streamed_agent_calls_its_tool(model):
    agent, asked = with_calculator(model)

    async def run():
        async with agent.run_stream("What is 12+7?") as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    assert (asyncio.run(run()), asked) == ("4711", ["12+7"])


def test_native_output_follows_the_schema(model):
    agent = Agent(model, output_type=NativeOutput(Card), model_settings=SETTINGS)
    assert agent.run_sync("Ada is 36 years old").output == Card(name="Ada", age=36)
