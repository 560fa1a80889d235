"""LangChain's OpenAI package: its chat models (over both chat and responses) and its completions."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from .conftest import NAME, Server

QUESTION = "What is the capital of France? Answer in one sentence."


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def settings(server: Server) -> dict[str, Any]:
    return {
        "model": NAME,
        "base_url": server.v1,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 40,
        "max_retries": 0,
    }


@pytest.fixture
def chat(settings) -> ChatOpenAI:
    return ChatOpenAI(**settings, stream_usage=True)


def test_invoke(chat):
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 3
    assert (
        answer.usage_metadata["total_tokens"]
        == answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    )


def test_stream(chat):
    whole, said = chat.invoke(QUESTION), AIMessageChunk("")
    for chunk in chat.stream(QUESTION):
        said += chunk
    assert said.content == whole.content
    assert said.usage_metadata == whole.usage_metadata
    assert said.response_metadata["finish_reason"] == "stop"


def test_astream(chat):
    async def read() -> str:
        return "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    assert "Paris" in asyncio.run(read())


def test_batch(chat):
    countries = ("France", "Italy", "Spain", "France")
    answers = chat.batch([f"What is the capital of {country}? Answer in one sentence." for country in countries])
    assert [type(answer) for answer in answers] == [AIMessage] * 4
    assert "Paris" in answers[0].content
    assert answers[0].content == answers[3].content


def test_chain_and_roles(chat):
    prompt = ChatPromptTemplate.from_messages([("human", "What is the capital of {country}? Answer in one sentence.")])
    assert "Paris" in (prompt | chat).invoke({"country": "France"}).content
    assert chat.invoke([SystemMessage("You are brief."), HumanMessage(QUESTION)]).content


def test_bind_tools(chat):
    bound = chat.bind_tools([get_weather])
    first = bound.invoke("Hello")
    assert first.usage_metadata["output_tokens"] > 0
    call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}
    turns = [HumanMessage("Weather?"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
    assert bound.invoke(turns).usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]


def test_logprobs(settings):
    answer = ChatOpenAI(**settings, logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == answer.usage_metadata["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_responses(settings):
    """Content there is a list of blocks."""
    chat = ChatOpenAI(**settings, use_responses_api=True)
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.text
    assert answer.usage_metadata["output_tokens"] > 3
    said = AIMessageChunk([])
    for chunk in chat.stream(QUESTION):
        said += chunk
    assert said.text == answer.text
    assert said.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert chat.bind_tools([get_weather]).invoke("Hello").usage_metadata["output_tokens"] > 0


def test_completions(settings):
    model = OpenAI(**settings | {"max_tokens": 8})
    assert "5" in model.invoke("1, 2, 3, 4,")
    assert "".join(model.stream("1, 2, 3, 4,")) == model.invoke("1, 2, 3, 4,")


def test_errors(settings):
    with pytest.raises(openai.BadRequestError) as bad:
        ChatOpenAI(**settings | {"temperature": -1}).invoke(QUESTION)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        ChatOpenAI(**settings | {"model": "gpt-17"}).invoke(QUESTION)
    with pytest.raises(ContextOverflowError):
        ChatOpenAI(**settings).invoke("word " * 9000)
