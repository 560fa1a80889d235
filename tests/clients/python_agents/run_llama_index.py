"""llama-index: its agent of function calls, and structured output."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from scripts import NAME, QUESTION, THREE_STEPS, URL, report


class Report(BaseModel):
    """The weather of a city."""

    city: str
    weather: str


def get_weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


def connect() -> OpenAILike:
    """A client for one conversation: its connections belong to one event loop."""
    return OpenAILike(
        model=NAME,
        api_base=f"{URL}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=32768,
        max_retries=0,
    )


async def work(streaming: bool) -> dict[str, Any]:
    agent = FunctionAgent(tools=[get_weather], llm=connect(), streaming=streaming, timeout=500)
    running = agent.run(QUESTION)
    called, deltas, thought = [], "", ""
    async for event in running.stream_events():
        if isinstance(event, ToolCallResult):
            called.append([event.tool_kwargs["city"], str(event.tool_output.content)])
        if isinstance(event, AgentStream):
            deltas += event.delta or ""
            thought += event.thinking_delta or ""
    return {"text": str(await running), "called": called, "deltas": deltas, "thought": thought}


def chat(streamed: bool) -> dict[str, Any]:
    said = [ChatMessage(role="user", content="think: Hello?")]
    if not streamed:
        return {"text": connect().chat(said).message.content}
    return {"text": "".join(piece.delta or "" for piece in connect().stream_chat(said))}


def ask_object(streamed: bool) -> dict[str, Any]:
    structured = connect().as_structured_llm(Report)
    said = [ChatMessage(role="user", content="think: as JSON")]
    if not streamed:
        return {"object": structured.chat(said).raw.model_dump()}
    *_, last = structured.stream_chat(said)
    return {"object": last.raw.model_dump()}


report("tools", lambda streamed: asyncio.run(work(streamed)), THREE_STEPS)
report("plain", chat, [])
report("object", ask_object, [])
