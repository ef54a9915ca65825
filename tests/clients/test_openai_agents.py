"""OpenAI's Agents SDK, over both APIs."""

import asyncio

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from corral import MODEL, async_client

# Traces would go to the API's own address.
set_tracing_disabled(True)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def agent_and_calls(request):
    asked = []

    @function_tool
    def calculator(expression: str) -> str:
        """Evaluates an arithmetic expression."""
        asked.append(expression)
        return "4711"

    agent = Agent(
        name="sums",
        model=request.param(MODEL, openai_client=async_client()),
        model_settings=ModelSettings(temperature=0),
        tools=[calculator],
    )
    return agent, asked


def test_agent_calls_its_tool(agent_and_calls):
    agent, asked = agent_and_calls
    assert Runner.run_sync(agent, "What is 12+7?").final_output == "4711"
    assert asked == ["12+7"]


def test_streamed_agent_calls_its_tool(agent_and_calls):
    agent, asked = agent_and_calls

    async def run():
        result = Runner.run_streamed(agent, "What is 12+7?")
        kinds = [event.type async for event in result.stream_events()]
        return result.final_output, kinds

    output, kinds = asyncio.run(run())
    assert (output, asked) == ("4711", ["12+7"])
    assert "raw_response_event" in kinds
