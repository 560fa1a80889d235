"""Haystack: its agent with tools, and structured output."""

from __future__ import annotations

import json
from typing import Annotated, Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel
from scripts import NAME, QUESTION, THREE_STEPS, URL, report


class Report(BaseModel):
    """The weather of a city."""

    city: str
    weather: str


@tool
def get_weather(city: Annotated[str, "the city"]) -> str:
    """Return the weather."""
    return f"sunny in {city}"


def generator(pieces: list[str] | None, **options: Any) -> OpenAIChatGenerator:
    """A client, which streams if there is a list for the pieces."""
    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model=NAME,
        api_base_url=f"{URL}/v1",
        max_retries=0,
        streaming_callback=None if pieces is None else lambda piece: pieces.append(piece.content),
        generation_kwargs=options,
    )


def work(streamed: bool) -> dict[str, Any]:
    pieces = [] if streamed else None
    agent = Agent(chat_generator=generator(pieces), tools=[get_weather], max_agent_steps=5)
    messages = agent.run(messages=[ChatMessage.from_user(QUESTION)])["messages"]
    called = [[call.arguments["city"] for call in message.tool_calls] for message in messages if message.tool_calls]
    results = [message.tool_call_result.result for message in messages if message.tool_call_result]
    thoughts = [str(message.reasoning.reasoning_text) for message in messages if message.reasoning]
    told = {"text": messages[-1].text, "called": called, "results": results, "thoughts": thoughts}
    return told | ({"deltas": "".join(pieces)} if pieces is not None else {})


def chat(streamed: bool) -> dict[str, Any]:
    pieces = [] if streamed else None
    return {"text": generator(pieces).run([ChatMessage.from_user("think: Hello?")])["replies"][0].text}


def ask_object(streamed: bool) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "Report", "schema": Report.model_json_schema()}}
    asked = generator([] if streamed else None, response_format=form if streamed else Report)
    return {"object": json.loads(asked.run([ChatMessage.from_user("think: as JSON")])["replies"][0].text)}


report("tools", work, THREE_STEPS)
report("plain", chat, [])
report("object", ask_object, [])
