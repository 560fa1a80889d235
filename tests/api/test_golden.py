"""Whole transcripts of streams, byte for byte, as reviewed by eye against OpenAI's documented shapes: tests/api/golden.

After a deliberate change: `python -m pytest tests/api/test_golden.py --golden-update`, and read the difference.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from api.harness import LocalClient, front_of, saying
from tailrace.api import call_items, chat_tools, chunks, response_events, service
from tailrace.api.routes import responses
from tailrace.config import ServerConfig

FOLDER = Path(__file__).parent / "golden"
CONFIG = ServerConfig(reasoning_parser="think", tool_parser="hermes")
HI = [{"role": "user", "content": "hi"}]
TOOL = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
USAGE = {"stream_options": {"include_usage": True}}

# name → what the model says, path, fields
STREAMS = {
    "chat": ("Hé!", "/v1/chat/completions", {"messages": HI, **USAGE}),
    "chat-two-choices-with-logprobs": (
        "a",
        "/v1/chat/completions",
        {"messages": HI, "n": 2, "logprobs": True, "top_logprobs": 1, "return_token_ids": True},
    ),
    "chat-stop": ("one two", "/v1/chat/completions", {"messages": HI, "stop": [" t"]}),
    "chat-length": ("one two", "/v1/chat/completions", {"messages": HI, "max_tokens": 2}),
    "chat-thinking": ("<think>a</think>b", "/v1/chat/completions", {"messages": HI}),
    "chat-tool-call": (f"x{CALL}", "/v1/chat/completions", {"messages": HI, "tools": TOOL}),
    "chat-tool-call-cut": (CALL, "/v1/chat/completions", {"messages": HI, "tools": TOOL, "max_tokens": 47}),
    "chat-two-choices": ("ab", "/v1/chat/completions", {"messages": HI, "n": 2, **USAGE}),
    "chat-error": ("Hello", "/v1/chat/completions", {"messages": HI}),
    "completion": ("ab", "/v1/completions", {"prompt": "x=", "echo": True, **USAGE}),
    "completion-logprobs": ("ab", "/v1/completions", {"prompt": "x=", "logprobs": 1}),
    "generate": ("ab", "/generate", {"text": "x=", "sampling_params": {"temperature": 0}, "return_logprob": True}),
    "chat-explained": ("a", "/v1/chat/completions", {"messages": HI, "seed": 1, "explain": {"top": 1}, "top_k": 2}),
    "completion-explained": ("a", "/v1/completions", {"prompt": "x=", "seed": 1, "explain": {"top": 1, "ids": [98]}}),
    "response-explained": ("a", "/v1/responses", {"input": "hi", "seed": 1, "explain": {"top": 1}}),
    "response-incomplete": ("one two", "/v1/responses", {"input": "hi", "max_output_tokens": 2}),
    "response-failed": ("Hello", "/v1/responses", {"input": "hi"}),
    "response": ("Hé!", "/v1/responses", {"input": "hi"}),
    "response-thinking-and-tool-call": (
        f"<think>a</think>b{CALL}",
        "/v1/responses",
        {"input": "hi", "tools": [{"type": "function", "name": "add", "parameters": {}}]},
    ),
}

TINY = re.compile(r"\d\.\d+e[-−]\d\d")  # probabilities and entropies; the last bits are the machine's own

FAILS_AT = {"chat-error": 3, "response-failed": 3}  # the step that fails


@pytest.fixture
def fixed(monkeypatch):
    """Time and random names stand still."""
    names = itertools.count(1)
    for module in (call_items, chat_tools, response_events, responses):
        monkeypatch.setattr(module, "uuid4", lambda: SimpleNamespace(hex=f"{next(names):032x}"))
    clock = SimpleNamespace(time=lambda: 1_700_000_000.0)
    monkeypatch.setattr(service, "fingerprint_of", lambda name: "fp_golden")
    monkeypatch.setattr(chunks, "time", clock)
    for module in (responses, response_events):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.parametrize("name", STREAMS)
async def test_the_stream_is_what_it_was(tokenizer, fixed, name, request):
    says, path, fields = STREAMS[name]
    client = LocalClient(saying(says.encode()), fail_at=FAILS_AT.get(name))
    client.patient = True
    async with front_of(client, tokenizer, CONFIG) as front:
        body = {"temperature": 0, "stream": True, "request_id": "golden", "rid": "golden", **fields}
        answer = await front.http.post(path, json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8", answer.text
    file, text = FOLDER / f"{name}.txt", TINY.sub("~0", answer.text)
    if request.config.getoption("--golden-update"):
        file.write_text(text)
    assert text == file.read_text()
