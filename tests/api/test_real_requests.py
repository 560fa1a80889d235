"""Requests in the shapes that real clients send: each is served, or a 400 names the field."""

from __future__ import annotations

from typing import Any

import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig

# Qwen 3.5 and later: a system message must be the first, and there must be a question
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be "
    "at the beginning.') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or () %}"
    "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{{ tools | tojson if tools else '' }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BASH = {
    "name": "Bash",
    "description": "Runs a command",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}
# the first request of Claude Code 2.1, and one after a call that was cut and one that failed
FIRST: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 64000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.232; cch=fa690;"},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": "Be careful.", **CACHED},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"}]},
        {"role": "system", "content": [{"type": "text", "text": "Available agent types: none"}]},
    ],
    "tools": [BASH, BASH | {"name": "Read"} | CACHED],
    "metadata": {"user_id": '{"device_id": "d"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"INVALID_JSON": '{"command": "'}}
FAILED = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "cut", **CACHED}
LATER: list[dict[str, Any]] = [
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, USE]},
    {"role": "user", "content": [FAILED, {"type": "text", "text": "<system-reminder>y</system-reminder>"}]},
    {"role": "system", "content": "New rules"},
]


@pytest.fixture
async def qwen(tmp_path, monkeypatch):
    """A front end whose template is strict, and the prompts that it writes."""
    client = LocalClient(saying(b"Hello"))
    client.context = 4096
    config = ServerConfig(tool_parser="hermes")
    async with front_of(client, make_tokenizer(tmp_path, STRICT), config) as front:
        prompts: list[str] = []
        render = front.service.tokenizer.render_chat
        noted = lambda messages, **options: prompts.append(render(messages, **options)) or prompts[-1]  # noqa: E731
        monkeypatch.setattr(front.service.tokenizer, "render_chat", noted)
        yield front, prompts


async def test_claude_code(qwen):
    front, prompts = qwen
    headers = {"anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07", "x-api-key": "none"}
    for messages in (FIRST["messages"], FIRST["messages"] + LATER):
        body = FIRST | {"messages": messages}
        streamed = await front.http.post("/v1/messages?beta=true", json=body, headers=headers)
        assert streamed.status_code == 200, streamed.text
        assert '"context_management":{"applied_edits":[]}' in streamed.text
        whole = await front.http.post("/v1/messages?beta=true", json=body | {"stream": False}, headers=headers)
        assert whole.json()["context_management"] == {"applied_edits": []}
        assert whole.json()["content"][0]["text"] == "Hello"
        asked = {name: value for name, value in body.items() if name not in ("max_tokens", "stream", "metadata")}
        counted = await front.http.post("/v1/messages/count_tokens?beta=true", json=asked, headers=headers)
        assert counted.json() == {"input_tokens": len(front.service.tokenizer.encode(prompts[-1]))}
        assert prompts[-1] == prompts[-2] == prompts[-3]
    first, last = prompts[0], prompts[-1]
    shared = first[: first.index("<|im_end|>\n[")]  # up to the tools, which this template writes at the end
    assert last.startswith(shared)
    for words in ("You are Claude Code.", "Be careful.", "</system-reminder>\n\nAvailable agent types: none"):
        assert words in first
    for words in (
        '<INVALID_JSON>{"command": "',
        "tool\nError: cut",
        "user\n<system-reminder>y</system-reminder>\n\nNew",
    ):
        assert words in last
    assert "billing" not in first


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "y"}]}, "mcp_servers"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 5}}}, "output_config"),
        ({"compaction": {"type": "auto"}}, "compaction"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
    ],
    ids=str,
)
async def test_what_claude_code_may_send_and_no_model_here_can_read(qwen, fields, param):
    answer = await qwen[0].http.post("/v1/messages", json=FIRST | fields)
    assert (answer.status_code, answer.json()["error"]["details"]["param"]) == (400, param)


async def test_a_screenshot_in_a_result_does_not_end_the_conversation(qwen):
    failed = FAILED | {"content": [{"type": "image", "source": {}}]}
    turns = [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [failed]}]
    body = FIRST | {"messages": [{"role": "user", "content": "hi"}, *turns]}
    answer = await qwen[0].http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text


SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
}


async def test_codex(qwen):
    """Its requests are not stored, and hold the whole conversation; developer messages come late."""
    front, prompts = qwen

    def text(role: str, words: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}

    body = {
        "model": "scripted",
        "instructions": "You are Codex.",
        "input": [
            text("developer", "<permissions instructions>"),
            text("user", "<environment_context>"),
            text("user", "list files"),
            {"type": "reasoning", "summary": [], "encrypted_content": None, "content": None},
            {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls', "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "failed to parse"},
            text("developer", "new permissions"),
            text("assistant", "Again"),
            text("assistant", "and again"),
            text("user", "go on"),
        ],
        "tools": [SHELL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
    }
    answer = await front.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().splitlines()[-2] == "event: response.completed"
    for words in (
        "system\nYou are Codex.\n\n<permissions instructions><",
        "user\n<environment_context><",
        "user\nlist files<",
        '<INVALID_JSON>{"command": ["ls',
        "tool\nfailed to parse<",
        "user\nnew permissions<",
        "assistant\nAgain<",
    ):
        assert words in prompts[0]


async def test_chats_with_late_system_messages_and_cut_calls(qwen):
    front, prompts = qwen
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for i, arguments in enumerate(('{"contents": "', "[1]", "3", '"x"', "", "null", None, {"a": 1}, '{"a": 1}'))
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
    messages = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "developer", "content": [{"type": "text", "text": "L"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    answer = await front.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5})
    assert answer.status_code == 200, answer.text
    told = prompts[0]
    assert "user\nL\n\na\nb<" in told
    assert [told.count(f"<INVALID_JSON>{text}<") for text in ("[1]", "3", '"x"')] == [1, 1, 1]
    assert told.count("<a>1") == 2
    assert told.count("<tool_call>f</tool_call>") == 3
