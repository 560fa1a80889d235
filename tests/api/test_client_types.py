"""Every answer of the OpenAI endpoints is of the official client's types, read strictly: nothing is missing, null or of
another type that may not be."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from api.harness import LocalClient, front_of, saying
from tailrace.config import ServerConfig

FUNCTION = {"name": "add", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ANSWERS = {"text": "Hello", "call": f"So {CALL}{CALL}", "thought": f"<think>hm</think>So {CALL}", "nothing": ""}
LIMITS = ({}, {"max": 2}, {"max": 40})


@cache
def make_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the type's adapter. One of a large union takes half a second to build."""
    return TypeAdapter(kind)


def check(kind: Any, data: bytes | str) -> None:
    """Fails if the JSON is not of the type."""
    make_adapter(kind).validate_json(data, strict=True)


async def events_of(front, path: str, body: dict[str, Any]) -> list[str]:
    """What the events of a stream hold."""
    answer = await front.http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line for line in lines if line != "[DONE]"]


@pytest.fixture(params=ANSWERS)
async def spoken(request, tokenizer):
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    client = LocalClient(saying(ANSWERS[request.param].encode()))
    client.context = 2048
    async with front_of(client, tokenizer, config) as front:
        yield front


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("tools", [False, True])
async def test_chats(spoken, limit, tools):
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    body |= {"max_tokens": limit["max"]} if limit else {}
    body |= {"tools": [{"type": "function", "function": FUNCTION}]} if tools else {}
    for more in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}):
        check(ChatCompletion, (await spoken.http.post("/v1/chat/completions", json=body | more)).content)
        more = more | {"stream_options": {"include_usage": True, "continuous_usage_stats": bool(more)}}
        for event in await events_of(spoken, "/v1/chat/completions", body | more):
            check(ChatCompletionChunk, event)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("tools", [False, True])
async def test_responses(spoken, limit, tools):
    body: dict[str, Any] = {"input": "hi"}
    body |= {"max_output_tokens": limit["max"]} if limit else {}
    body |= {"tools": [{"type": "function", **FUNCTION}]} if tools else {}
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    told = {"instructions": "x", "metadata": {"a": "b"}, "reasoning": {"effort": "low", "summary": "auto"}}
    for more in ({}, scored, told):
        made = await spoken.http.post("/v1/responses", json=body | more)
        check(Response, made.content)
        path = f"/v1/responses/{made.json()['id']}"
        check(Response, (await spoken.http.get(path)).content)
        check(ResponseItemList, (await spoken.http.get(f"{path}/input_items")).content)
        for event in await events_of(spoken, "/v1/responses", body | more):
            check(ResponseStreamEvent, event)


async def test_completions_and_models(front):
    for more in ({}, {"logprobs": 2}, {"n": 2, "max_tokens": 2}):
        check(Completion, (await front.complete(**more)).content)
        for event in await events_of(front, "/v1/completions", {"prompt": "x="} | more):
            if '"finish_reason":null' not in event:  # OpenAI sends null, too, and the type has no room for it
                check(Completion, event)
    check(Model, (await front.http.get("/v1/models/scripted")).content)
