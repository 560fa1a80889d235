"""Agents complete a conversation with a tool, in every format of calls: the model calls it, the agent runs it, the
model answers with its result. The model is scripted (scripted_agent.py); what comes back through the tool is nowhere
else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import agents
import anthropic
import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from .conftest import NAME, Server

QUESTION = "What is the weather in Paris?"
RESULT = "sunny, 21 degrees"
ANSWER = f"They say: {RESULT}"
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Forecast(BaseModel):
    """The weather, as an agent's output."""

    city: str
    weather: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Paris"
    return RESULT


@pytest.fixture
def model(agent: Server, form: str) -> Server:
    """The server, with a model that writes calls in this form."""
    agent.post(f"/format/{form}")
    return agent


@pytest.fixture
def client(model: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=model.v1, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def chat_turns(client: openai.OpenAI, streamed: bool, **how: Any) -> str:
    """The conversation over chat completions."""
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    ask = {"model": NAME, "tools": [{"type": "function", "function": WEATHER}], "temperature": 0}

    def complete(**how: Any) -> Any:
        if not streamed:
            return client.chat.completions.create(**ask, messages=turns, **how).choices[0]
        with client.chat.completions.stream(**ask, messages=turns, **how) as stream:
            return stream.get_final_completion().choices[0]

    choice = complete(**how)
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert choice.finish_reason == ("stop" if isinstance(how.get("tool_choice"), dict) else "tool_calls")  # as OpenAI's
    turns += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": get_weather("Paris")}]
    return complete().message.content


@pytest.mark.parametrize("streamed", [False, True])
def test_openais_client(client, streamed):
    assert chat_turns(client, streamed) == ANSWER


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call(client, choice):
    assert chat_turns(client, streamed=False, tool_choice=choice) == ANSWER


def test_anthropics_client(model):
    tools = [{"name": "get_weather", "description": "x", "input_schema": WEATHER["parameters"]}]
    with anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0, timeout=120) as client:
        turns: list[Any] = [{"role": "user", "content": QUESTION}]
        with client.messages.stream(model=NAME, max_tokens=500, tools=tools, messages=turns) as stream:
            first = stream.get_final_message()
        [call] = first.content
        assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather("Paris")}
        turns += [first.to_param(), {"role": "user", "content": [result]}]
        last = client.messages.create(model=NAME, max_tokens=500, tools=tools, messages=turns)
        assert last.content[0].text == ANSWER


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_openai_agents(model, kind):
    theirs = kind(model=NAME, openai_client=openai.AsyncOpenAI(base_url=model.v1, api_key="none", max_retries=0))
    agents.set_tracing_disabled(True)
    made = agents.Agent(
        name="Weather", instructions="Use the tool.", model=theirs, tools=[agents.function_tool(get_weather)]
    )
    result = agents.Runner.run_sync(made, QUESTION)
    assert result.final_output == ANSWER
    assert [type(item).__name__ for item in result.new_items] == [
        "ToolCallItem",
        "ToolCallOutputItem",
        "MessageOutputItem",
    ]


def models_of_pydantic(server: Server) -> dict[str, Any]:
    """Its model over Anthropic's API is left out: 2.31 can't use Anthropic's client 2 (httpx2), whatever serves."""
    ours = OpenAIProvider(base_url=server.v1, api_key="none")
    return {
        "chat": OpenAIChatModel(NAME, provider=ours),
        "responses": OpenAIResponsesModel(NAME, provider=ours),
    }


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai(model, api):
    """Once with text as the output, and once with a tool for it, which must then be called."""
    theirs = models_of_pydantic(model)[api]
    said = Agent(theirs, tools=[get_weather], instructions="Use the tool.").run_sync(QUESTION)
    assert said.output == ANSWER
    made = Agent(theirs, tools=[get_weather], output_type=ToolOutput(Forecast, name="final_result"))
    result = made.run_sync(QUESTION)
    assert result.output == Forecast(city="Paris", weather=RESULT)
    assert result.usage.tool_calls == 1


def models_of_langchain(server: Server) -> dict[str, Any]:
    ours = {"model": NAME, "base_url": server.v1, "api_key": "none", "max_retries": 0, "temperature": 0}
    theirs = {"model": NAME, "base_url": server.url, "api_key": "none", "max_retries": 0, "max_tokens": 1000}
    return {
        "chat": ChatOpenAI(**ours),
        "responses": ChatOpenAI(**ours, use_responses_api=True),
        "messages": ChatAnthropic(**theirs),
    }


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_langchain(model, api):
    theirs = models_of_langchain(model)[api]
    ask = {"messages": [{"role": "user", "content": QUESTION}]}
    turns = create_agent(theirs, tools=[tool(get_weather)]).invoke(ask)["messages"]
    assert turns[-1].text == ANSWER
    assert [turn.type for turn in turns] == ["human", "ai", "tool", "ai"]
    final = type("final_result", (Forecast,), {"__doc__": "The weather."})
    made = create_agent(theirs, tools=[tool(get_weather)], response_format=ToolStrategy(final))
    found = made.invoke(ask)["structured_response"]
    assert (found.city, found.weather) == ("Paris", RESULT)
