"""Tools that Anthropic has defined and that clients run: functions with the published input, answered as tool_use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from api.test_item_tools import client_of, say_call
from api.test_messages import COUNT, HI, PATH, events_of, folded
from tailrace.api.anthropic_tools import DEFINED
from tailrace.config import ServerConfig

HERMES = ServerConfig(tool_parser="hermes")
INPUTS: dict[str, dict[str, Any]] = {
    "bash_20241022": {"command": "ls"},
    "bash_20250124": {"command": "", "restart": True},
    "text_editor_20241022": {"command": "undo_edit", "path": "/a"},
    "text_editor_20250124": {"command": "insert", "path": "/a", "insert_line": 0, "new_str": "x"},
    "text_editor_20250429": {"command": "view", "path": "/a", "view_range": [1, -1]},
    "text_editor_20250728": {"command": "insert", "path": "/a", "insert_line": 2, "insert_text": "x"},
    "memory_20250818": {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
}


def test_every_tool_has_an_input_here():
    assert INPUTS.keys() == DEFINED.keys()


@pytest.mark.parametrize(("choice", "stream"), [("auto", True), ("any", False), ("tool", False)])
@pytest.mark.parametrize("kind", INPUTS)
async def test_calls_are_tool_uses(tokenizer, grammars, kind: str, choice: str, stream: bool):
    name, given = DEFINED[kind].name, INPUTS[kind]
    said = say_call(name, json.dumps(given))
    body = {"messages": HI, "max_tokens": 200, "temperature": 0, "tools": [{"type": kind, "name": name}]}
    chosen = {"type": choice} | ({"name": name} if choice == "tool" else {})
    async with front_of(client_of(grammars, said), tokenizer, HERMES) as front:
        asked = await front.http.post(PATH, json=body | {"stream": stream, "tool_choice": chosen})
        assert asked.status_code == 200, asked.text
        assert "dropped" not in asked.headers.get("warning", "")
        message = folded(events_of(asked.text)) if stream else asked.json()
        [use] = message["content"]
        assert (use["type"], use["name"], use["input"]) == ("tool_use", name, given)
        assert message["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "done"}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        again = await front.http.post(PATH, json=body | {"messages": HI + turns})
        assert again.status_code == 200, again.text


async def test_the_model_sees_the_input(tmp_path):
    """Whatever is not said of the tool comes from its type; a description of the request's own goes first. Also tools
    whose loading is deferred are seen."""
    tokenizer = make_tokenizer(tmp_path, "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}=")
    tools = [
        {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}},
        {"type": "bash_20250124", "name": "bash", "description": "Own.", "input_examples": [{"command": "ls"}]},
        {"type": "text_editor_20250728", "max_characters": 9, "defer_loading": True},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]
    client = LocalClient(saying(b"x"))
    client.context = 4096
    async with front_of(client, tokenizer, HERMES) as front:
        shown = await front.http.post("/v1/messages/render", json={"messages": HI, "max_tokens": 5, "tools": tools})
        assert shown.status_code == 200, shown.text
        counted = await front.http.post(COUNT, json={"messages": HI, "tools": tools})
    ids = shown.json()["token_ids"]
    assert counted.json()["input_tokens"] == len(ids)
    seen = json.loads(bytes(ids).decode().removesuffix("hi="))
    assert [tool["function"]["name"] for tool in seen] == ["memory", "bash", "str_replace_based_edit_tool"]
    assert {"path", "old_path", "insert_text"} < seen[0]["function"]["parameters"]["properties"].keys()
    assert (seen[1]["function"]["description"], seen[1]["function"]["input_examples"]) == ("Own.", [{"command": "ls"}])


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "bash_20250124", "name": "shell"}, "tools[0].name"),
        ({"type": "bash_20250124", "name": "bash", "input_schema": {}}, "tools[0].input_schema"),
        ({"type": "bash_20270101", "name": "bash"}, "tools[0].type"),
        ({"type": "bash", "name": "bash"}, "tools[0].type"),
        ({"type": "computer_toolset_20260801"}, "tools[0].type"),
        ({"input_schema": {}}, "tools[0].name"),
    ],
)
async def test_what_is_refused(front, tool: dict[str, Any], param: str):
    answer = await front.http.post(PATH, json={"messages": HI, "max_tokens": 5, "tools": [tool]})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["details"]["param"] == param


async def test_a_name_is_given_once(front):
    tools = [{"type": "bash_20250124", "name": "bash"}, {"name": "bash", "input_schema": {}}]
    answer = await front.http.post(PATH, json={"messages": HI, "max_tokens": 5, "tools": tools})
    assert (answer.status_code, answer.json()["error"]["details"]["param"]) == (400, "tools[1].name")
