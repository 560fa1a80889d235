"""Tools that the chat template does not write are never dropped in silence: each answer has a warning, or the request
is refused."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.harness import Front, LocalClient, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig

HEADER = '299 tailrace "the model\'s chat template does not write tools, so the model does not see them"'
LINES = "{% for m in messages %}{{ m.content }}{% endfor %}="
BEHIND_SYSTEM = "{% if messages[0].role == 'system' %}{{ tools }}{% endif %}" + LINES
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
USER = [{"role": "user", "content": "hi"}]
# endpoint → path, body with tools, the field of the choice that forces a call
ENDPOINTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": USER, "tools": [{"type": "function", "function": FUNCTION}]},
        "required",
    ),
    "responses": ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}, "required"),
    "messages": (
        "/v1/messages",
        {"messages": USER, "max_tokens": 5, "tools": [{"name": "f", "input_schema": SCHEMA}]},
        {"type": "any"},
    ),
}


@pytest.fixture
async def make_front(tmp_path: Any) -> AsyncIterator[Any]:
    contexts = []

    async def make(source: str = LINES, **settings: Any) -> Front:
        config = ServerConfig(tool_parser="hermes", **settings)
        contexts.append(front_of(LocalClient(saying(b"Hi")), make_tokenizer(tmp_path, source), config))
        return await contexts[-1].__aenter__()

    yield make
    for context in contexts:
        await context.__aexit__(None, None, None)


async def post(front: Front, kind: str, **fields: Any) -> httpx.Response:
    path, body, _ = ENDPOINTS[kind]
    return await front.http.post(path, json=body | fields)


@pytest.mark.parametrize("kind", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_has_a_warning(make_front: Any, kind: str, stream: bool, caplog: pytest.LogCaptureFixture):
    front = await make_front()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            answer = await post(front, kind, stream=stream)
            assert (answer.status_code, answer.headers.get_list("warning")) == (200, [HEADER])
    lines = [record.getMessage() for record in caplog.records if "does not write tools" in record.getMessage()]
    assert len(lines) == 1  # once per model


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_a_forced_call_has_the_same_warning_and_no_tools_have_none(make_front: Any, kind: str):
    front, (path, body, forced) = await make_front(), ENDPOINTS[kind]
    never: Any = {"type": "none"} if kind == "messages" else "none"
    assert (await post(front, kind, tool_choice=forced, stream=True)).headers.get_list("warning") == [HEADER]
    for fields in ({"tool_choice": never}, {"tools": []}):
        answer = await front.http.post(path, json=body | fields)
        assert (answer.status_code, answer.headers.get_list("warning")) == (200, []), answer.text


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_the_operator_may_refuse_them(make_front: Any, kind: str):
    front, forced = await make_front(unseen_tools="refuse"), ENDPOINTS[kind][2]
    for choice in ({}, {"tool_choice": forced}, {"stream": True}):
        answer = await post(front, kind, **choice)
        error = answer.json()["error"]
        assert (answer.status_code, "tools: the model's chat template" in error["message"]) == (400, True)
        assert error.get("param", "tools") == "tools"
    assert (await post(front, kind, tools=[])).status_code == 200


@pytest.mark.parametrize("kind", ENDPOINTS)
@pytest.mark.parametrize("policy", ["warn", "refuse"])
async def test_tools_that_are_written_are_no_matter(make_front: Any, kind: str, policy: str):
    front = await make_front("{{ tools }}" + LINES, unseen_tools=policy)
    answer = await post(front, kind)
    assert (answer.status_code, answer.headers.get_list("warning")) == (200, [])


async def test_a_template_may_write_them_behind_a_system_message_only(make_front: Any):
    front = await make_front(BEHIND_SYSTEM)
    assert (await post(front, "chat")).headers.get_list("warning") == [HEADER]
    both = [{"role": "system", "content": "s"}, *USER]
    assert (await post(front, "chat", messages=both)).headers.get_list("warning") == []
    assert (await post(front, "messages", system="s")).headers.get_list("warning") == []
    assert (await post(front, "responses", instructions="s")).headers.get_list("warning") == []


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_counting_warns_too(make_front: Any, path: str):
    front = await make_front()
    body = ENDPOINTS["chat" if path == "/tokenize" else "messages"][1]
    answer = await front.http.post(path, json={name: body[name] for name in ("messages", "tools")})
    assert (answer.status_code, answer.headers.get_list("warning")) == (200, [HEADER])


# user and assistant alternate without calls and results, and a call is written without its text, with its number
DROPS_TEXT = (
    "{{ tools }}{% for m in messages if not m.tool_calls and m.role not in ('tool', 'system') %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.tool_calls %}{{ loop.index }}{% for c in m.tool_calls %}{{ c.function.name }} "
    "{{ c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}="
)
DROPPED = (
    '299 tailrace "the model\'s chat template leaves out text beside tool calls, so the model does not see that text"'
)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "1"}


def talk_of(kind: str, text: str) -> dict[str, Any]:
    """A conversation with a call and this text beside it."""
    if kind == "chat":
        result = {"role": "tool", "tool_call_id": "c", "content": "1"}
        return {"messages": [*USER, {"role": "assistant", "content": text, "tool_calls": [CALL]}, result]}
    parts = [{"type": "text", "text": text}] if text else []
    answer = {"role": "assistant", "content": [*parts, USE]}
    return {"messages": [*USER, answer, {"role": "user", "content": [RESULT]}]}


@pytest.mark.parametrize("kind", ["chat", "messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_text_beside_calls_that_the_template_drops_has_a_warning(make_front: Any, kind: str, stream: bool):
    front, kept = (
        await make_front(DROPS_TEXT),
        await make_front(DROPS_TEXT.replace("{% else %}", "{% endif %}{% if 1 %}")),
    )
    for server, text, warnings in ((front, "So", [DROPPED]), (front, "", []), (kept, "So", [])):
        answer = await post(server, kind, stream=stream, **talk_of(kind, text))
        assert (answer.status_code, answer.headers.get_list("warning")) == (200, warnings), answer.text
