"""Agents complete a conversation with a tool: the model calls it, the agent runs it, the model answers with its result.
The model is scripted (scripted_agent.py); what comes back through the tool is nowhere else."""

from __future__ import annotations

import json
import urllib.request
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


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30):
        pass


@pytest.fixture
def hermes(agent: Server) -> Server:
    post(f"{agent.url}/format/hermes")
    return agent


@pytest.fixture
def client(agent: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=agent.v1, api_key="none", max_retries=0, timeout=120) as made:
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
    assert choice.finish_reason == "tool_calls"
    turns += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": get_weather("Paris")}]
    return complete().message.content


def test_each_format_with_openais_client(agent, client):
    with urllib.request.urlopen(f"{agent.url}/formats") as answer:
        formats = json.load(answer)
    assert len(formats) >= 9
    for name in formats:
        post(f"{agent.url}/format/{name}")
        assert chat_turns(client, streamed=False) == ANSWER, name
        assert chat_turns(client, streamed=True) == ANSWER, name


def test_a_forced_call(hermes, client):
    assert chat_turns(client, streamed=False, tool_choice="required") == ANSWER


def test_each_format_with_anthropics_client(agent):
    tools = [{"name": "get_weather", "description": "x", "input_schema": WEATHER["parameters"]}]
    with urllib.request.urlopen(f"{agent.url}/formats") as answer:
        formats = json.load(answer)
    with anthropic.Anthropic(base_url=agent.url, api_key="none", max_retries=0, timeout=120) as client:
        for name in formats:
            post(f"{agent.url}/format/{name}")
            turns: list[Any] = [{"role": "user", "content": QUESTION}]
            with client.messages.stream(model=NAME, max_tokens=500, tools=tools, messages=turns) as stream:
                first = stream.get_final_message()
            [call] = first.content
            assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"}), name
            result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather("Paris")}
            turns += [first.to_param(), {"role": "user", "content": [result]}]
            last = client.messages.create(model=NAME, max_tokens=500, tools=tools, messages=turns)
            assert last.content[0].text == ANSWER, name


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_openai_agents(hermes, kind):
    model = kind(model=NAME, openai_client=openai.AsyncOpenAI(base_url=hermes.v1, api_key="none", max_retries=0))
    agents.set_tracing_disabled(True)
    made = agents.Agent(
        name="Weather", instructions="Use the tool.", model=model, tools=[agents.function_tool(get_weather)]
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
def test_pydantic_ai(hermes, api):
    """Once with text as the output, and once with a tool for it, which must then be called."""
    model = models_of_pydantic(hermes)[api]
    said = Agent(model, tools=[get_weather], instructions="Use the tool.").run_sync(QUESTION)
    assert said.output == ANSWER
    made = Agent(model, tools=[get_weather], output_type=ToolOutput(Forecast, name="final_result"))
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
def test_langchain(hermes, api):
    model = models_of_langchain(hermes)[api]
    ask = {"messages": [{"role": "user", "content": QUESTION}]}
    turns = create_agent(model, tools=[tool(get_weather)]).invoke(ask)["messages"]
    assert turns[-1].text == ANSWER
    assert [turn.type for turn in turns] == ["human", "ai", "tool", "ai"]
    final = type("final_result", (Forecast,), {"__doc__": "The weather."})
    made = create_agent(model, tools=[tool(get_weather)], response_format=ToolStrategy(final))
    found = made.invoke(ask)["structured_response"]
    assert (found.city, found.weather) == ("Paris", RESULT)
