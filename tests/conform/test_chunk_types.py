"""The vendored types of chunks agree with the official client's: on good chunks, and on each kind of wrong one."""

from __future__ import annotations

import copy
from typing import Any

import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from tailrace.conform.chunk_types import chunk_problem

CHAT = {
    "id": "a",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}, "finish_reason": None, "logprobs": None}],
}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
TEXT = {
    "id": "a",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "text": "x", "finish_reason": "stop", "logprobs": None}],
}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def with_calls(*calls: Any) -> dict[str, Any]:
    made = copy.deepcopy(CHAT)
    made["choices"][0]["delta"]["tool_calls"] = list(calls)
    return made


GOOD = [(CHAT, True), (TEXT, False), (CHAT | {"usage": USAGE, "choices": []}, True), (with_calls(CALL), True)]
WRONG = [
    *[({k: v for k, v in CHAT.items() if k != name}, True) for name in CHAT],
    *[({k: v for k, v in TEXT.items() if k != name}, False) for name in TEXT],
    (CHAT | {"object": "chat.completion"}, True),
    (CHAT | {"created": "now"}, True),
    (CHAT | {"choices": [{"index": 0, "finish_reason": None}]}, True),
    (CHAT | {"choices": [{"index": "a", "delta": {}, "finish_reason": None}]}, True),
    (CHAT | {"choices": [{"index": 0, "delta": {}, "finish_reason": "eos"}]}, True),
    (CHAT | {"choices": [{"index": 0, "delta": {"role": "bot"}, "finish_reason": None}]}, True),
    (CHAT | {"choices": [{"index": 0, "delta": {"content": 5}, "finish_reason": None}]}, True),
    (CHAT | {"usage": {"prompt_tokens": 1}}, True),
    (with_calls({"id": "c", "function": {"name": "f"}}), True),
    (with_calls({"index": 0, "function": {"name": "f", "arguments": {}}}), True),
    (TEXT | {"choices": [{"index": 0, "finish_reason": None}]}, False),
]


def official(chunk: dict[str, Any], chat: bool) -> bool:
    """Valid by the official client's types, strictly."""
    kind = ChatCompletionChunk if chat else Completion
    try:
        pydantic.TypeAdapter(kind).validate_python(chunk, strict=True)
    except pydantic.ValidationError:
        return False
    return True


@pytest.mark.parametrize(("chunk", "chat"), GOOD)
def test_a_good_chunk_is_good_for_both(chunk: dict[str, Any], chat: bool):
    assert official(chunk, chat)
    assert chunk_problem(chunk, chat) is None


@pytest.mark.parametrize(("chunk", "chat"), WRONG)
def test_a_wrong_chunk_is_wrong_for_both(chunk: dict[str, Any], chat: bool):
    assert not official(chunk, chat)
    assert chunk_problem(chunk, chat)
