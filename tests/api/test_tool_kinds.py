"""Namespaces and custom tools of /v1/responses: functions for the model, the client's own items in the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.harness import LocalClient, front_of, saying
from api.test_responses import events_of, post
from tailrace.api.custom_tools import CustomInput, write_custom_arguments
from tailrace.api.tool_kinds import flatten_tools
from tailrace.config import ServerConfig

CLOSE = {"type": "function", "name": "close", "description": "Close it.", "parameters": {}}
PATCH = {"type": "custom", "name": "patch", "description": "Patch files."}
SPACE = {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": [CLOSE, PATCH]}
TOOLS = [{"type": "function", "name": "close", "parameters": {}}, SPACE, PATCH]
REGEX = {"type": "grammar", "syntax": "regex"}
LARK = {"type": "grammar", "syntax": "lark", "definition": "x"}
TEXT = 'a\n"b" \\ é 😀'


def call_of(name: str, arguments: str) -> bytes:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'.encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "item"),
    [
        ("close", '{"id": 1}', {"type": "function_call", "name": "close", "arguments": '{"id": 1}'}),
        (
            "agents__close",
            '{"id": 1}',
            {"type": "function_call", "name": "close", "namespace": "agents", "arguments": '{"id": 1}'},
        ),
        ("patch", json.dumps({"input": TEXT}), {"type": "custom_tool_call", "name": "patch", "input": TEXT}),
        (
            "agents__patch",
            json.dumps({"input": TEXT}, ensure_ascii=False),
            {"type": "custom_tool_call", "name": "patch", "namespace": "agents", "input": TEXT},
        ),
        ("patch", '{"diff": 1}', {"type": "custom_tool_call", "name": "patch", "input": '{"diff": 1}'}),
    ],
)
async def test_calls_are_the_clients_items(tokenizer, name: str, arguments: str, item: dict[str, Any], stream: bool):
    config = ServerConfig(tool_parser="hermes")
    async with front_of(LocalClient(saying(call_of(name, arguments))), tokenizer, config) as front:
        asked = await post(front, tools=TOOLS, stream=stream)
        assert asked.status_code == 200, asked.text
        answer = events_of(asked.text)[-1]["response"] if stream else asked.json()
        [call] = answer["output"]
        assert {key: call.get(key) for key in ("type", "name", "namespace", "arguments", "input")} == {
            key: item.get(key) for key in ("type", "name", "namespace", "arguments", "input")
        }
        assert answer["tools"] == [TOOLS[0] | {"description": None, "strict": False}, SPACE, PATCH]
        output = {"type": call["type"] + "_output", "call_id": call["call_id"], "output": "done"}
        again = await post(front, tools=TOOLS, input=[{"role": "user", "content": "x"}, call, output])
        assert again.status_code == 200, again.text
        stored = await post(front, tools=TOOLS, previous_response_id=answer["id"], input=[output])
        assert stored.status_code == 200, stored.text


async def test_events_of_a_custom_call(tokenizer):
    config = ServerConfig(tool_parser="hermes")
    said = call_of("patch", write_custom_arguments(TEXT))
    async with front_of(LocalClient(saying(said)), tokenizer, config) as front:
        events = events_of((await post(front, tools=TOOLS, stream=True)).text)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 5, "the text leaves as it is written"
    [done] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == TEXT
    assert not [event for event in events if "function_call" in event["type"]]


async def test_a_thought_is_its_summary(tokenizer):
    config = ServerConfig(reasoning_parser="think")
    async with front_of(LocalClient(saying(b"<think>hm hm</think>So")), tokenizer, config) as front:
        events = events_of((await post(front, reasoning={"summary": "auto"}, stream=True)).text)
        plain = events_of((await post(front, stream=True)).text)
    kinds = [event["type"] for event in events]
    assert kinds.index("response.reasoning_summary_part.added") < kinds.index("response.reasoning_summary_text.delta")
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == "hm hm"
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hm hm"}]
    assert not [event for event in plain if "summary" in event["type"]]
    assert plain[-1]["response"]["output"][0]["summary"] == []


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "namespace", "name": "a"}], None, "tools[0].tools"),
        ([{"type": "namespace", "name": 1, "tools": [CLOSE]}], None, "tools[0].name"),
        ([SPACE | {"tools": [CLOSE, {"type": "web_search"}]}], None, "tools[0].tools[1].type"),
        ([SPACE | {"tools": [CLOSE, CLOSE]}], None, "tools[0].tools[1].name"),
        ([SPACE, CLOSE | {"name": "agents__close"}], None, "tools[1].name"),
        ([{"type": "custom"}], None, "tools[0].name"),
        ([PATCH | {"format": LARK}], None, "tools[0].format.definition"),
        ([PATCH | {"format": REGEX | {"definition": "(["}}], None, "tools[0].format.definition"),
        ([PATCH | {"format": REGEX | {"definition": r"(a)\1"}}], None, "tools[0].format.definition"),
        ([PATCH | {"format": {"type": "json"}}], None, "tools[0].format"),
        (TOOLS, {"type": "custom", "name": "close"}, "tool_choice"),
    ],
)
async def test_wrong_tools_are_named_by_their_places(front, tools: list[Any], choice: Any, param: str):
    answer = await post(front, tools=tools, tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_regex_holds_for_the_input():
    """The grammar of the call has the pattern of its text."""
    regex = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+|x"}
    [function] = flatten_tools([PATCH | {"format": regex}]).functions or ()
    assert function["strict"]
    assert function["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:[0-9]+|x)$"}


async def test_a_lark_grammar_is_shown_to_the_model():
    lark = LARK | {"definition": "start: /[0-9]+/"}
    flat = flatten_tools([PATCH | {"format": lark}, SPACE])
    [function, *_] = flat.functions or ()
    assert function["strict"]
    assert lark["definition"] in function["parameters"]["properties"]["input"]["description"]
    read = {name: one.lark and set(one.lark.bodies) for name, one in flat.offered.items()}
    assert read == {"patch": {"start"}, "agents__close": None, "agents__patch": None}


def read_in_pieces(arguments: str, cuts: list[int]) -> tuple[list[str], str]:
    """The texts of pieces, and what the end adds."""
    reader, found, at = CustomInput(), [], 0
    for cut in [*sorted({cut % (len(arguments) + 1) for cut in cuts}), len(arguments)]:
        found.append(reader.feed(arguments[at:cut]))
        at = cut
    return found, reader.end()


@given(st.text(alphabet=st.sampled_from('ab"\\/\n\té😀{}u0dD8')), st.booleans(), st.lists(st.integers(0, 200)))
def test_any_text_comes_back_in_any_pieces(text: str, escaped: bool, cuts: list[int]):
    found, rest = read_in_pieces(json.dumps({"input": text}, ensure_ascii=escaped), cuts)
    assert ("".join(found), rest) == (text, "")


@given(st.text(alphabet=st.sampled_from('{}"input: \\ud8dcn')), st.lists(st.integers(0, 60)))
def test_any_arguments_give_the_same_in_any_pieces(arguments: str, cuts: list[int]):
    whole, end = read_in_pieces(arguments, [])
    found, rest = read_in_pieces(arguments, cuts)
    assert ("".join(found), rest) == ("".join(whole), end)


def test_a_torn_pair_loses_nothing_else():
    found, rest = read_in_pieces('{"input": "a\\ud83d b\\q \\u12"}', [3, 14, 17])
    assert ("".join(found), rest) == ("a� b\\q \\u12", "")
