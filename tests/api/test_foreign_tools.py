"""Tools that cannot be served are dropped with a warning if others are left, or refused."""

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
    "/v1/messages": [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ],
}
VENDOR, SCREEN = "only its vendor can run such a tool", "the model cannot see the screen"
UNKNOWN, SEARCH = "no such tool is known in this API", "the model sees all tools from the start"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}


async def ask(tmp_path: Any, path: str, tools: list[Any], policy: str = "drop", **fields: Any) -> httpx.Response:
    tokenizer = make_tokenizer(tmp_path, LINES)
    config = ServerConfig(tool_parser="hermes", foreign_tools=policy)  # pyright: ignore[reportArgumentType]
    client = LocalClient(saying(b"Hi"))
    client.context = 1024
    async with front_of(client, tokenizer, config) as front:
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


@pytest.mark.parametrize(
    ("path", "tool", "reason"),
    [
        ("/v1/chat/completions", {"type": "bash_20250124", "name": "bash"}, UNKNOWN),
        ("/v1/chat/completions", {"type": "local_shell"}, UNKNOWN),
        ("/v1/responses", {"type": "computer_use_preview"}, SCREEN),
        ("/v1/responses", {"type": "tool_search", "execution": "client"}, SEARCH),
        ("/v1/responses", {"type": "programmatic_tool_calling"}, VENDOR),
        ("/v1/responses", {"type": "shell", "environment": {"type": "container_auto"}}, VENDOR),
        ("/v1/responses", {"type": "memory_20250818"}, UNKNOWN),
        ("/v1/messages", {"type": "bash_20270101", "name": "bash"}, UNKNOWN),
        ("/v1/messages", {"type": "browser_toolset_20260801"}, SCREEN),
        ("/v1/messages", {"type": "computer_20251124", "name": "computer"}, SCREEN),
        ("/v1/messages", {"type": "advisor_20260301", "name": "advisor", "model": "x"}, VENDOR),
    ],
)
async def test_the_warning_says_why(tmp_path: Any, path: str, tool: dict[str, Any], reason: str):
    answer = await ask(tmp_path, path, [tool, OURS[path]])
    assert answer.status_code == 200, answer.text
    [warning] = answer.headers.get_list("warning")
    assert warning == f'299 tailrace "dropped, because {reason}: {tool["type"]}"'


@pytest.mark.parametrize("path", OURS)
async def test_each_reason_has_its_warning(tmp_path: Any, path: str):
    answer = await ask(tmp_path, path, [*THEIRS[path], {"type": "computer_20250124", "name": "c"}, OURS[path]])
    assert [VENDOR in text for text in answer.headers.get_list("warning")] == [True, False]


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


CHOICES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"type": "web_search"}),
    (
        "/v1/chat/completions",
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "web_search"}]}},
    ),
    ("/v1/responses", {"type": "web_search_preview"}),
    ("/v1/responses", {"type": "mcp", "server_label": "x"}),
    ("/v1/responses", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "x"}]}),
    ("/v1/messages", {"type": "tool", "name": "web_search"}),
]


@pytest.mark.parametrize(("path", "choice"), CHOICES)
async def test_a_choice_of_a_dropped_tool_says_why_it_was_dropped(tmp_path: Any, path: str, choice: Any):
    answer = await ask(tmp_path, path, [*THEIRS[path], OURS[path]], tool_choice=choice)
    problem = problem_of(answer)
    assert problem["param"].startswith("tool_choice")
    assert f"was dropped, because {VENDOR}" in problem["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_dropped_tools_leave_the_allowed_ones(tmp_path: Any, path: str):
    own = (
        {"type": "function", "function": {"name": "f"}}
        if path != "/v1/responses"
        else {"type": "function", "name": "f"}
    )
    theirs = {name: THEIRS[path][0][name] for name in ("type",)}
    allowed = {"mode": "auto", "tools": [theirs, own]}
    choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if path != "/v1/responses" else allowed)}
    answer = await ask(tmp_path, path, [*THEIRS[path], OURS[path]], tool_choice=choice)
    # the tokenizer's model has no grammars: the request gets as far as the grammar that the choice needs
    assert answer.status_code == 200 or "grammar" in answer.text, answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_choice_of_a_tool_that_is_not_there(tmp_path: Any, path: str):
    problem = problem_of(await ask(tmp_path, path, [OURS[path]], tool_choice={"type": "web_search"}))
    assert problem["message"] == 'tool_choice: there is no tool of type "web_search"'


def with_callers(path: str, callers: Any) -> dict[str, Any]:
    """A second function, which these may call."""
    function = {"name": "g", "parameters": SCHEMA}
    tools: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"type": "function", "function": function},
        "/v1/responses": {"type": "function", **function},
        "/v1/messages": {"name": "g", "input_schema": SCHEMA},
    }
    return tools[path] | {"allowed_callers": callers}


@pytest.mark.parametrize("path", OURS)
async def test_a_tool_for_programs_alone_is_dropped(tmp_path: Any, path: str):
    tool = with_callers(path, ["code_execution_20260120"])
    answer = await ask(tmp_path, path, [OURS[path], tool])
    assert answer.status_code == 200, answer.text
    because = "only programs that its vendor runs may call such a tool"
    assert answer.headers.get_list("warning") == [f'299 tailrace "dropped, because {because}: g"']
    for tools, policy, place in (([tool], "drop", 0), ([OURS[path], tool], "refuse", 1)):
        problem = problem_of(await ask(tmp_path, path, tools, policy))
        assert problem["param"] == f"tools[{place}].allowed_callers"
    choice = {"type": "tool", "name": "g"} if path == "/v1/messages" else {"type": "function", "name": "g"}
    problem = problem_of(await ask(tmp_path, path, [tool, OURS[path]], tool_choice=choice))
    assert f"was dropped, because {because}" in problem["message"]


@pytest.mark.parametrize("path", OURS)
@pytest.mark.parametrize("callers", ["direct", [], [1], {"direct": 1}, True])
async def test_callers_are_a_list_of_names(tmp_path: Any, path: str, callers: Any):
    answer = await ask(tmp_path, path, [OURS[path], with_callers(path, callers)])
    assert problem_of(answer)["param"] == "tools[1].allowed_callers"


@pytest.mark.parametrize("path", OURS)
@pytest.mark.parametrize("callers", [None, ["direct"], ["code_execution_20260120", "direct"]])
async def test_a_tool_for_the_model_too_stays(tmp_path: Any, path: str, callers: Any):
    answer = await ask(tmp_path, path, [OURS[path], with_callers(path, callers)])
    assert answer.status_code == 200, answer.text
    assert "warning" not in answer.headers


async def test_a_tool_in_a_namespace_may_not_be_for_programs_alone(tmp_path: Any):
    path = "/v1/responses"
    space = {"type": "namespace", "name": "n", "description": "d", "tools": [with_callers(path, ["programmatic"])]}
    problem = problem_of(await ask(tmp_path, path, [OURS[path], space]))
    assert problem["param"] == "tools[1].tools[0].allowed_callers"
