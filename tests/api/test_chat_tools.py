"""Custom tools in chats: functions for the model, the client's own calls in the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.harness import LocalClient, events, front_of, saying
from api.submitted import asked
from api.test_tool_kinds import call_of
from tailrace.api.custom_tools import write_custom_arguments
from tailrace.config import ServerConfig

PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patch files."}}
CLOSE = {"type": "function", "function": {"name": "close", "parameters": {}}}
TOOLS = [CLOSE, PATCH]
TEXT = 'a\n"b" \\ é 😀'
ASK = {"role": "user", "content": "x"}


class Client(LocalClient):
    context = 2048


HERMES = ServerConfig(tool_parser="hermes")
NAMED = {"type": "custom", "custom": {"name": "patch"}}


def grammar(**fields: Any) -> dict[str, Any]:
    """The patch tool with a grammar."""
    return {"type": "custom", "custom": PATCH["custom"] | {"format": {"type": "grammar", "grammar": fields}}}


async def chat(front: Any, **fields: Any) -> Any:
    return await front.http.post("/v1/chat/completions", json={"messages": [ASK], "max_tokens": 400, **fields})


@pytest.mark.parametrize(
    ("arguments", "text"), [(write_custom_arguments(TEXT), TEXT), ('{"diff": 1}', '{"diff": 1}'), ("{}", "{}")]
)
async def test_streamed_and_whole_calls_are_the_same(tokenizer, arguments: str, text: str):
    said = call_of("patch", arguments) + call_of("close", "{}") + call_of("patch", write_custom_arguments("2"))
    async with front_of(Client(saying(said)), tokenizer, HERMES) as front:
        whole = (await chat(front, tools=TOOLS)).json()["choices"][0]
        stream = events((await chat(front, tools=TOOLS, stream=True)).text)[:-1]
    deltas = [call for chunk in stream for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [{k: v for k, v in call.items() if k != "id"} for call in whole["message"]["tool_calls"]] == [
        {"type": "custom", "custom": {"name": "patch", "input": text}},
        {"type": "function", "function": {"name": "close", "arguments": "{}"}},
        {"type": "custom", "custom": {"name": "patch", "input": "2"}},
    ]
    assert whole["finish_reason"] == stream[-1]["choices"][0]["finish_reason"] == "tool_calls"
    mine = [delta for delta in deltas if delta["index"] == 0]
    assert mine[0]["id"]
    assert {key: mine[0][key] for key in ("type", "custom")} == {
        "type": "custom",
        "custom": {"name": "patch", "input": ""},
    }
    assert all(delta.keys() == {"index", "custom"} for delta in mine[1:])
    assert "".join(delta["custom"]["input"] for delta in mine) == text
    assert text != TEXT or len(mine) > 5, "the text leaves as it is written"


async def test_earlier_calls_go_back(tokenizer):
    """A call of a custom tool in the history makes the same prompt as the call of its function."""
    custom = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": TEXT}}
    function = {"name": "patch", "arguments": write_custom_arguments(TEXT)}
    result = {"role": "tool", "tool_call_id": "a", "content": "done"}
    client = Client(saying(b"x"))
    prompts = []
    async with front_of(client, tokenizer, HERMES) as front:
        for call in (custom, {"id": "a", "type": "function", "function": function}):
            messages = [ASK, {"role": "assistant", "tool_calls": [call]}, result]
            answer = await front.http.post("/tokenize", json={"messages": messages, "tools": TOOLS})
            assert answer.status_code == 200, answer.text
            prompts.append(answer.json()["tokens"])
            assert (await chat(front, messages=messages, tools=TOOLS)).status_code == 200
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (NAMED, ["patch"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, ["patch"]),
        ("required", ["close", "patch"]),
    ],
)
async def test_a_custom_tool_can_be_forced(tokenizer, choice: Any, names: list[str]):
    async with front_of(Client(saying(b"x")), tokenizer, HERMES) as front:
        params, _ = await asked(front, tools=TOOLS, tool_choice=choice)
    assert params.grammar is not None
    source = params.grammar.source
    assert [name for name in ("close", "patch") if f'\\"{name}\\"' in source] == names


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "custom"}], None, "tools[0].custom"),
        ([CLOSE, {"type": "custom", "custom": {}}], None, "tools[1].custom.name"),
        ([PATCH, PATCH], None, "tools[1].custom.name"),
        ([{"type": "custom", "custom": {"name": "a", "format": "text"}}], None, "tools[0].custom.format"),
        ([grammar(syntax="abnf", definition="x")], None, "tools[0].custom.format"),
        ([grammar(syntax="lark", definition="x: y")], None, "tools[0].custom.format.grammar.definition"),
        (TOOLS, {"type": "custom", "custom": {"name": "other"}}, "tool_choice"),
        (TOOLS, {"type": "custom", "custom": {"name": "close"}}, "tool_choice"),
        (TOOLS, {"type": "custom"}, "tool_choice"),
    ],
)
async def test_wrong_tools_are_named_by_their_places(front, tools: list[Any], choice: Any, param: str):
    answer = await chat(front, tools=tools, tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({"type": "custom"}, "custom"),
        ({"type": "custom", "custom": {"input": "x"}}, "custom.name"),
        ({"type": "custom", "custom": {"name": "x", "input": 1}}, "custom.input"),
        ({"type": "mcp"}, "type"),
    ],
)
async def test_wrong_earlier_calls_are_named_by_their_places(front, call: Any, param: str):
    messages = [ASK, {"role": "assistant", "tool_calls": [{"id": "a"} | call]}]
    answer = await chat(front, messages=messages, tools=TOOLS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"messages[1].tool_calls[0].{param}")


async def test_a_regex_holds_for_the_input(tokenizer):
    async with front_of(Client(saying(b"x")), tokenizer, HERMES) as front:
        params, _ = await asked(front, tools=[grammar(syntax="regex", definition="[0-9]+|x")], tool_choice=NAMED)
    assert params.grammar is not None
    assert json.dumps("^(?:[0-9]+|x)$") in params.grammar.source
