"""Tools that only a vendor can run are dropped with a warning if others are left, or refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig

LINES = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OURS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    "/v1/responses": {"type": "function", "name": "f", "parameters": SCHEMA},
    "/v1/messages": {"name": "f", "input_schema": SCHEMA},
}
THEIRS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"type": "web_search"}],
    "/v1/responses": [{"type": "web_search_preview_2025_03_11"}, {"type": "mcp", "server_label": "x"}],
    "/v1/messages": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}],
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}


async def ask(tmp_path: Any, path: str, tools: list[Any], policy: str = "drop", **fields: Any) -> httpx.Response:
    tokenizer = make_tokenizer(tmp_path, LINES)
    config = ServerConfig(tool_parser="hermes", foreign_tools=policy)  # pyright: ignore[reportArgumentType]
    async with front_of(LocalClient(saying(b"Hi")), tokenizer, config) as front:
        return await front.http.post(path, json=BODIES[path] | {"tools": tools} | fields)


def problem_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    problem = answer.json()["error"]
    return problem.get("details", problem) | {"message": problem["message"]}


@pytest.mark.parametrize("path", OURS)
async def test_they_are_dropped_with_a_warning(tmp_path: Any, path: str):
    answer = await ask(tmp_path, path, [*THEIRS[path], OURS[path]])
    assert answer.status_code == 200, answer.text
    names = ", ".join(tool["type"] for tool in THEIRS[path])
    expected = f'299 tailrace "dropped, because only its vendor can run such a tool: {names}"'
    assert answer.headers.get_list("warning") == [expected]
    if path == "/v1/responses":
        assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]


@pytest.mark.parametrize("path", OURS)
async def test_alone_they_are_refused(tmp_path: Any, path: str):
    assert problem_of(await ask(tmp_path, path, THEIRS[path]))["param"] == "tools[0].type"


@pytest.mark.parametrize("path", OURS)
async def test_the_operator_may_refuse_them(tmp_path: Any, path: str):
    answer = await ask(tmp_path, path, [OURS[path], *THEIRS[path]], "refuse")
    assert problem_of(answer)["param"] == "tools[1].type"


@pytest.mark.parametrize("path", OURS)
async def test_a_type_that_nobody_knows_is_refused_at_its_place(tmp_path: Any, path: str):
    wrong = OURS[path] | {"type": "fuction", "name": "g"}
    problem = problem_of(await ask(tmp_path, path, [*THEIRS[path], OURS[path], wrong]))
    place = f"tools[{len(THEIRS[path]) + 1}].type"
    assert problem["param"] == place
    assert problem["message"].startswith(place)


@pytest.mark.parametrize("path", OURS)
async def test_a_dropped_tool_cannot_be_chosen(tmp_path: Any, path: str):
    choice = {"type": "tool", "name": "web_search"} if path == "/v1/messages" else {"type": "web_search"}
    answer = await ask(tmp_path, path, [*THEIRS[path], OURS[path]], tool_choice=choice)
    assert problem_of(answer)["param"].startswith("tool_choice")
