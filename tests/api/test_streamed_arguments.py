"""A text between tags grows in chats and responses: many deltas, which join to the whole answer's arguments."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, events, front_of, saying
from tailrace.config import ServerConfig
from tool_examples import written

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
FILE = "".join(f"line {i}: <b>é</b>\n" for i in range(80))[:240]
CALL = {"path": "a.txt", "text": FILE}
FORMS = ("qwen3_coder", "minimax_m3")


def client_of(form: str) -> LocalClient:
    client = LocalClient(saying(written(form, [("save", CALL)]).encode()))
    client.context = 2048
    return client


@pytest.mark.parametrize("form", FORMS)
async def test_a_chat_streams_a_text_between_tags(tokenizer, form):
    asked = {
        "tools": [{"type": "function", "function": {"name": "save", "parameters": PARAMETERS}}],
        "max_tokens": 1000,
    }
    async with front_of(client_of(form), tokenizer, ServerConfig(tool_parser=form)) as front:
        [choice] = (await front.chat(**asked)).json()["choices"]
        whole = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(whole) == CALL
        chunks = [event for event in events((await front.chat(stream=True, **asked)).text) if event != "[DONE]"]
    deltas = [call for chunk in chunks for one in chunk["choices"] for call in one["delta"].get("tool_calls") or ()]
    parts = [part for call in deltas if (part := call["function"].get("arguments"))]
    assert len(parts) > 60
    assert "".join(parts) == whole
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", FORMS)
async def test_a_response_streams_a_text_between_tags(tokenizer, form):
    tools = [{"type": "function", "name": "save", "parameters": PARAMETERS, "strict": False}]
    asked = {"input": "hi", "tools": tools, "temperature": 0, "max_output_tokens": 1000}
    async with front_of(client_of(form), tokenizer, ServerConfig(tool_parser=form)) as front:
        [item] = (await front.http.post("/v1/responses", json=asked)).json()["output"]
        text = (await front.http.post("/v1/responses", json=asked | {"stream": True})).text
    found = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    parts = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]
    assert len(parts) > 60
    assert "".join(parts) == item["arguments"]
    assert json.loads(item["arguments"]) == CALL
