"""The vendored types of chunks and answers agree with the official client's, on good and on wrong ones."""

from __future__ import annotations

import copy
from typing import Any

import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tailrace_conform.chunk_types import chunk_problem

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
    (with_calls({"index": 0, "function": 3}), True),
    (CHAT | {"choices": [{"index": 0, "delta": {"tool_calls": 5}, "finish_reason": None}]}, True),
    (TEXT | {"choices": [{"index": 0, "finish_reason": None}]}, False),
]


MESSAGE = {"role": "assistant", "content": "x", "refusal": None}
WHOLE = CHAT | {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", "logprobs": None}],
}


def whole(**fields: Any) -> dict[str, Any]:
    """The whole answer with another choice."""
    return WHOLE | {"choices": [WHOLE["choices"][0] | fields]}


WHOLE_WRONG = [
    *[{k: v for k, v in WHOLE.items() if k != name} for name in WHOLE],
    WHOLE | {"object": "chat.completion.chunk"},
    whole(finish_reason=None),
    whole(finish_reason="eos"),
    whole(index="a"),
    whole(message=None),
    whole(message=MESSAGE | {"role": "bot"}),
    whole(message={"content": "x"}),
    whole(message=MESSAGE | {"content": 5}),
    whole(message=MESSAGE | {"tool_calls": 5}),
    whole(message=MESSAGE | {"tool_calls": [{"id": "c", "type": "function", "function": 3}]}),
    whole(message=MESSAGE | {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}),
    whole(message=MESSAGE | {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
]


def official(chunk: dict[str, Any], chat: bool, whole: bool = False) -> bool:
    """Valid by the official client's types, strictly."""
    kind = (ChatCompletion if whole else ChatCompletionChunk) if chat else Completion
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


def test_a_good_answer_is_good_for_both():
    for answer, chat in ((WHOLE, True), (TEXT, False)):
        assert official(answer, chat, whole=True)
        assert chunk_problem(answer, chat, whole=True) is None


@pytest.mark.parametrize("answer", WHOLE_WRONG)
def test_a_wrong_answer_is_wrong_for_both(answer: dict[str, Any]):
    assert not official(answer, True, whole=True)
    assert chunk_problem(answer, True, whole=True)
