"""Chat: what is thought, said and called comes in its own fields, streamed and whole alike."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, events, front_of, saying
from tailrace.config import ServerConfig

TOOL = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
CONFIG = ServerConfig(reasoning_parser="think", tool_parser="hermes")


def fronting(tokenizer, answer: str, config: ServerConfig = CONFIG):
    return front_of(LocalClient(saying(answer.encode())), tokenizer, config)


async def both(front, **fields) -> tuple[dict, list[dict]]:
    """The whole answer's choice, and the stream's choices."""
    whole = (await front.chat(**fields)).json()["choices"][0]
    *chunks, done = events((await front.chat(stream=True, **fields)).text)
    assert done == "[DONE]"
    return whole, [chunk["choices"][0] for chunk in chunks]


async def test_thinking_has_a_field_of_its_own(tokenizer):
    async with fronting(tokenizer, "<think>2 + 2</think>4") as front:
        whole, streamed = await both(front, logprobs=True, return_token_ids=True)
        message = whole["message"]
        assert (message["reasoning_content"], message["content"]) == ("2 + 2", "4")
        assert whole["finish_reason"] == "stop"
        for field, text in (("reasoning_content", "2 + 2"), ("content", "4")):
            assert "".join(choice["delta"].get(field, "") for choice in streamed) == text
        ids = [id for choice in streamed for id in choice["token_ids"]]
        assert ids == whole["token_ids"]
        assert bytes(ids[:-1]) == b"<think>2 + 2</think>4"
        listed = [entry["token"] for choice in streamed for entry in (choice["logprobs"] or {"content": []})["content"]]
        assert listed == [entry["token"] for entry in whole["logprobs"]["content"]]
        assert len(listed) == len(ids)


async def test_all_of_it_as_content_if_asked_or_configured(tokenizer):
    async with fronting(tokenizer, "<think>a</think>b") as front:
        whole, _ = await both(front, separate_reasoning=False)
        assert whole["message"]["content"] == "<think>a</think>b"
        assert "reasoning_content" not in whole["message"]
    async with fronting(tokenizer, "<think>a</think>b", ServerConfig(reasoning_parser="none")) as front:
        assert (await both(front))[0]["message"]["content"] == "<think>a</think>b"


async def test_tool_calls(tokenizer):
    async with fronting(tokenizer, f"{CALL}{CALL}") as front:
        whole, streamed = await both(front, tools=TOOL)
        assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
        calls = whole["message"]["tool_calls"]
        assert [call["function"] for call in calls] == [{"name": "add", "arguments": '{"a": 1}'}] * 2
        assert len({call["id"] for call in calls}) == 2
        deltas = [call for choice in streamed for call in choice["delta"].get("tool_calls", [])]
        assert [call["index"] for call in deltas] == [0, 1]
        assert all(
            json.loads(call["function"]["arguments"]) == {"a": 1} and call["type"] == "function" for call in deltas
        )
        assert streamed[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("fields", [{}, {"tools": TOOL, "tool_choice": "none"}])
async def test_without_tools_there_are_no_calls(tokenizer, fields):
    async with fronting(tokenizer, CALL) as front:
        whole, _ = await both(front, **fields)
        assert (whole["finish_reason"], whole["message"]["content"]) == ("stop", CALL)


async def test_case_22_a_call_cut_by_max_tokens_finishes_as_length(tokenizer):
    async with fronting(tokenizer, CALL) as front:
        whole, streamed = await both(front, tools=TOOL, max_tokens=30)
        assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "length"
        assert whole["message"]["content"] == CALL[:30] == "".join(c["delta"].get("content", "") for c in streamed)
        assert "tool_calls" not in whole["message"]


async def test_case_20_a_stop_counts_in_thinking_too(tokenizer):
    async with fronting(tokenizer, "<think>one STOP two</think>three") as front:
        whole, _ = await both(front, stop=["STOP"])
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", "STOP")
        assert (whole["message"]["reasoning_content"], whole["message"]["content"]) == ("one ", "")
