"""local_shell, shell and apply_patch of /v1/responses: functions for the model, items of their own for the client."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseItemList

from api.harness import LocalClient, front_of, saying
from api.test_client_types import check
from api.test_responses import events_of, post
from tailrace.api.call_items import ADDED, make_call
from tailrace.api.item_messages import turns_of
from tailrace.api.item_tools import DEFINED, read_arguments
from tailrace.api.open_strings import ObjectReader
from tailrace.api.schema.response_items import InputItem
from tailrace.api.tool_kinds import Offered, flatten_tools
from tailrace.config import ServerConfig
from tailrace.grammar.service import Grammars

HERMES = ServerConfig(tool_parser="hermes")
DIFF = '@@ def f():\n-    return "a\\n"\n+    return "é😀"'
# type of the tool, arguments, the item without ids
CALLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "local_shell",
        {"command": ["ls", "-l"], "timeout_ms": 5},
        {"type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5}},
    ),
    (
        "shell",
        {"commands": ['echo "a"', "ls\n"], "timeout_ms": 9},
        {
            "type": "shell_call",
            "action": {"commands": ['echo "a"', "ls\n"], "timeout_ms": 9, "max_output_length": None},
        },
    ),
    (
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": DIFF},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a.py", "diff": DIFF}},
    ),
    (
        "apply_patch",
        {"type": "delete_file", "path": "a.py", "diff": ""},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.py"}},
    ),
]
OUTPUTS: dict[str, dict[str, Any]] = {
    "local_shell": {"output": "a b"},
    "shell": {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    "apply_patch": {"status": "failed", "output": "no such line"},
}


def client_of(grammars: Grammars, said: bytes) -> LocalClient:
    """A client whose engine serves grammars and says this."""
    client = LocalClient(saying(said))
    client.grammars = grammars
    return client


def say_call(name: str, arguments: str) -> bytes:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'.encode()


def strip_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


@pytest.mark.parametrize(
    ("choice", "stream"), [("auto", False), ("auto", True), ("required", True), ("own", False), ("allowed", False)]
)
@pytest.mark.parametrize(("kind", "arguments", "item"), CALLS)
async def test_calls_are_items(
    tokenizer, grammars, kind: str, arguments: dict[str, Any], item: Any, choice: str, stream: bool
):
    chosen: Any = {
        "own": {"type": kind},
        "allowed": {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    }
    said, tools = say_call(kind, json.dumps(arguments, ensure_ascii=False)), [{"type": name} for name in DEFINED]
    async with front_of(client_of(grammars, said), tokenizer, HERMES) as front:
        asked = await post(front, tools=tools, stream=stream, tool_choice=chosen.get(choice, choice))
        assert asked.status_code == 200, asked.text
        answer = events_of(asked.text)[-1]["response"] if stream else asked.json()
        [call] = answer["output"]
        assert strip_ids(call) == item | {"status": "completed"}
        assert answer["tools"] == tools
        output = {"type": f"{kind}_call_output", "call_id": call["call_id"]} | OUTPUTS[kind]
        again = await post(front, tools=tools, input=[{"role": "user", "content": "x"}, call, output])
        assert again.status_code == 200, again.text
        stored = await post(front, tools=tools, previous_response_id=answer["id"], input=[output])
        assert stored.status_code == 200, stored.text


async def list_events(tokenizer, grammars, kind: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    said = say_call(kind, json.dumps(arguments))
    async with front_of(client_of(grammars, said), tokenizer, HERMES) as front:
        return events_of((await post(front, tools=[{"type": kind}], stream=True)).text)


async def test_commands_leave_as_they_are_written(tokenizer, grammars):
    events = await list_events(tokenizer, grammars, "shell", {"commands": ["echo 1", "ls"]})
    events = [event for event in events if event["type"].startswith("response.shell_call_command")]
    kinds = [event["type"].rpartition(".")[2] for event in events if event["command_index"] == 0]
    assert (kinds[0], kinds[-1], len(kinds) > 5) == ("added", "done", True)
    for place, command in enumerate(("echo 1", "ls")):
        mine = [event for event in events if event["command_index"] == place]
        assert "".join(event.get("delta", "") for event in mine) == mine[-1]["command"] == command
        assert {event["output_index"] for event in mine} == {0}


async def test_a_diff_leaves_as_it_is_written(tokenizer, grammars):
    patch = {"type": "create_file", "path": "a.py", "diff": "+a\n+b"}
    events = await list_events(tokenizer, grammars, "apply_patch", patch)
    [added] = [event for event in events if event["type"] == "response.output_item.added"]
    assert added["item"]["operation"] == patch | {"diff": ""}
    deltas = [event["delta"] for event in events if event["type"] == "response.apply_patch_call_operation_diff.delta"]
    [done] = [event for event in events if event["type"] == "response.apply_patch_call_operation_diff.done"]
    assert "".join(deltas) == done["diff"] == patch["diff"]
    assert len(deltas) > 3


@pytest.mark.parametrize(
    ("kind", "arguments", "item"),
    [
        ("shell", '{"commands": ["ls", "ec', {"type": "shell_call", "status": "incomplete"}),
        ("shell", '{"comm', {"type": "function_call", "name": "shell", "arguments": '{"comm', "status": "incomplete"}),
        (
            "apply_patch",
            '{"type": "create_file", "path": "a", "diff": "+a',
            {"type": "apply_patch_call", "status": "in_progress"},
        ),
        ("apply_patch", '{"type": "crea', {"type": "function_call", "name": "apply_patch", "status": "incomplete"}),
        ("local_shell", '{"command": ["l', {"type": "function_call", "name": "local_shell", "status": "incomplete"}),
    ],
)
async def test_a_call_that_is_cut_off(tokenizer, grammars, kind: str, arguments: str, item: dict[str, Any]):
    said = f'<tool_call>\n{{"name": "{kind}", "arguments": {arguments}'
    async with front_of(client_of(grammars, said.encode()), tokenizer, HERMES) as front:
        asked = {"tools": [{"type": kind}], "max_output_tokens": len(said)}
        answer = (await post(front, **asked)).json()
        streamed = events_of((await post(front, **asked, stream=True)).text)[-1]["response"]
    [call] = answer["output"]
    assert {name: call[name] for name in item} == item
    assert [strip_ids(one) for one in streamed["output"]] == [strip_ids(call)]
    assert answer["status"] == "incomplete"


def run_call(kind: str, arguments: str, cuts: list[int]) -> tuple[list[tuple[str, dict[str, Any]]], Any]:
    """The events of a call whose arguments come in pieces, without ids, and its item."""
    call, at, steps = make_call(Offered(kind, item=kind), None), 0, []
    for cut in [*sorted({cut % (len(arguments) + 1) for cut in cuts}), len(arguments)]:
        steps += [(step.type, dict(step.fields)) for step in call.feed(arguments[at:cut])]
        at = cut
    steps += [(step.type, dict(step.fields)) for step in call.end("completed")]
    return [(kind, strip_ids(fields)) for kind, fields in steps], msgspec.to_builtins(call.item)


@pytest.mark.parametrize("rest", ["", ", ", ', "timeo', ', "timeout_ms": 5', ', "timeout_ms": "x"}'])
def test_a_command_ends_once(rest: str):
    steps, item = run_call("shell", '{"commands": ["a", "b"]' + rest, list(range(60)))
    done = [fields for name, fields in steps if name.endswith(".done")]
    assert done == [{"command_index": 0, "command": "a"}, {"command_index": 1, "command": "b"}]
    assert (item["action"]["commands"], item["status"]) == (["a", "b"], "incomplete")


TEXT = st.text(alphabet=st.sampled_from('ab"\\/\n,:[]{}é😀'), max_size=12)
ARGUMENTS = st.one_of(
    st.tuples(
        st.just("shell"), st.fixed_dictionaries({"commands": st.lists(TEXT)}, optional={"timeout_ms": st.just(5)})
    ),
    st.tuples(
        st.just("local_shell"),
        st.fixed_dictionaries({"command": st.lists(TEXT)}, optional={"env": st.dictionaries(TEXT, TEXT)}),
    ),
    st.tuples(
        st.just("apply_patch"),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["create_file", "update_file", "delete_file"]), "path": TEXT, "diff": TEXT}
        ).flatmap(lambda patch: st.permutations(list(patch.items())).map(dict)),
    ),
)


@given(ARGUMENTS, st.booleans(), st.lists(st.integers(0, 200)))
def test_any_pieces_give_the_same_item(call: tuple[str, dict[str, Any]], escaped: bool, cuts: list[int]):
    kind, arguments = call
    steps, item = run_call(kind, json.dumps(arguments, ensure_ascii=escaped), cuts)
    tool = DEFINED[kind]
    assert item[tool.field] == tool.complete(msgspec.to_builtins(msgspec.convert(arguments, tool.arguments)))
    assert [name for name, _ in steps].count(ADDED) == 1
    deltas = [fields for name, fields in steps if name.endswith(".delta")]
    if kind == "shell":
        for place, command in enumerate(arguments["commands"]):
            mine = [fields["delta"] for fields in deltas if fields["command_index"] == place]
            assert "".join(mine) == command
    if kind == "apply_patch" and arguments["type"] != "delete_file":
        assert "".join(fields["delta"] for fields in deltas) == arguments["diff"]


VALUES = st.recursive(
    st.one_of(TEXT, st.integers(), st.none()), lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner))
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.lists(st.integers(0, 200)))
def test_strings_of_an_object(value: dict[str, Any], cuts: list[int]):
    reader, text, at = ObjectReader(), json.dumps(value), 0
    found: dict[tuple[str, int | None], str] = {}
    for cut in [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]:
        for piece in reader.feed(text[at:cut]):
            found[piece.name, piece.place] = found.get((piece.name, piece.place), "") + piece.text
        at = cut
    lists = {name: one if isinstance(one, list) else [one] for name, one in value.items()}
    wanted = {
        (name, i if isinstance(value[name], list) else None): part
        for name, one in lists.items()
        for i, part in enumerate(one)
        if isinstance(part, str)
    }
    assert found == wanted


@given(
    st.sampled_from(
        [("shell", "commands"), ("local_shell", "command"), ("apply_patch", "diff"), ("apply_patch", "path")]
    ),
    VALUES,
    st.lists(st.integers(0, 200)),
)
def test_arguments_that_do_not_fit(place: tuple[str, str], value: Any, cuts: list[int]):
    kind, name = place
    fitting = {"type": "create_file", "path": "p", "diff": ""} if kind == "apply_patch" else {}
    arguments = json.dumps(fitting | {name: value})
    steps, item = run_call(kind, arguments, cuts)
    assert [step for step, _ in steps].count(ADDED) == 1
    if read_arguments(kind, arguments) is None:
        assert item["status"] in ("incomplete", "in_progress")
        assert item["type"] == f"{kind}_call" or item["arguments"] == arguments
        if not isinstance(value, list if kind == "shell" else str):
            assert item["type"] == "function_call"
    for step, fields in steps:
        if step == "shell_call_command.delta":
            assert fields["command_index"] < len(item["action"]["commands"])


def test_what_the_model_sees_of_calls_and_outputs():
    items: list[dict[str, Any]] = [
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "env": {}, "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "a", "output": "x"},
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"], "timeout_ms": None}},
        {
            "type": "shell_call_output",
            "call_id": "b",
            "max_output_length": 100,
            "output": [
                {"stdout": "out", "stderr": "err", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "delete_file", "path": "p"},
            "status": "completed",
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no p"},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
        {
            "type": "apply_patch_call_output",
            "call_id": "c",
            "status": "failed",
            "output": [{"type": "input_text", "text": "no p"}],
        },
    ]
    turns = turns_of(msgspec.convert(items, list[InputItem]))
    calls = [call["function"] for turn in turns for call in turn.tool_calls or ()]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("local_shell", {"command": ["ls"]}),
        ("shell", {"commands": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "p"}),
    ]
    said = [(turn.tool_call_id, turn.content) for turn in turns if turn.role == "tool"]
    shell = "out\nerr\n[exit code 2]\n[timed out]"
    assert said == [("a", "x"), ("b", shell), ("c", "failed\nno p"), ("c", "completed"), ("c", "failed\nno p")]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": "shell_call", "call_id": "a"}], "input[1].action"),
        ([{"type": "shell_call", "call_id": "a", "action": {"commands": "ls"}}], "input[1].action"),
        ([{"type": "local_shell_call", "call_id": "a", "action": {"env": {}}}], "input[1].action"),
        ([{"type": "apply_patch_call", "call_id": "a", "operation": {"type": "move"}}], "input[1].operation"),
        ([{"type": "shell_call_output", "call_id": "a", "output": "x"}], "input[1].call_id"),
        ([{"type": "local_shell_call_output", "id": "a", "output": "x"}], "input[1].call_id"),
        (
            [
                {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "x"}]},
            ],
            "input[2].output[0].outcome",
        ),
        (
            [
                {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "a", "output": [{"outcome": {"type": "exit"}}]},
            ],
            "input[2].output[0].outcome.exit_code",
        ),
        (
            [
                {"type": "apply_patch_call", "call_id": "a", "operation": {"type": "delete_file", "path": "p"}},
                {"type": "apply_patch_call_output", "call_id": "a"},
            ],
            "input[2].status",
        ),
    ],
)
async def test_wrong_items_are_named_by_their_places(front, items: list[Any], param: str):
    answer = await post(front, tools=[{"type": "shell"}], input=[{"role": "user", "content": "x"}, *items])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "shell", "environment": {"type": "container_auto"}}], None, "tools[0].environment"),
        ([{"type": "shell", "environment": {}}, {"type": "apply_patch"}], None, "tools[0].environment"),
        ([{"type": "shell", "environment": "local"}], None, "tools[0].environment"),
        ([{"type": "shell", "environment": {"type": "local", "skills": [1]}}], None, "tools[0].environment.skills"),
        ([{"type": "shell", "environment": {"type": "local", "skills": {}}}], None, "tools[0].environment.skills"),
        ([{"type": "shell"}, {"type": "shell"}], None, "tools[1].name"),
        ([{"type": "shell"}, {"type": "function", "name": "shell"}], None, "tools[1].name"),
        ([{"type": "shell"}], {"type": "apply_patch"}, "tool_choice"),
        ([{"type": "shell"}, {"type": "web_search"}], {"type": "web_search"}, "tool_choice"),
        ([{"type": "sell"}], None, "tools[0].type"),
        ([{"type": ["shell"]}], None, "tools[0].type"),
        ([{"type": {}}], None, "tools[0].type"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": []}]}], None, "tools[0].tools[0].type"),
        ([{"type": "shell"}], {"type": ["shell"]}, "tool_choice"),
        ([{"type": "shell"}], {"type": "allowed_tools", "mode": "auto", "tools": [{"type": {}}]}, "tool_choice"),
    ],
)
async def test_wrong_tools_are_named_by_their_places(front, tools: list[Any], choice: Any, param: str):
    answer = await post(front, tools=tools, tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_the_model_sees_the_skills_of_a_shell():
    skill = {"name": "pdf", "description": "Reads PDF files.", "path": "/s/pdf"}
    [function] = flatten_tools([{"type": "shell", "environment": {"type": "local", "skills": [skill]}}]).functions or []
    assert function["description"].endswith("\n- pdf (/s/pdf): Reads PDF files.")
    assert function["strict"]


LIMITS = {"timeout_ms": 5, "max_output_length": None}
PREFIXES = ("lsh_", "lsho_", "sh_", "sho_", "apc_", "apco_", "ctc_", "ctco_", "fc_", "fco_")


@pytest.mark.parametrize("kept_in", ["conversation", "response"])
async def test_items_are_kept_as_they_were_sent(tokenizer, kept_in: str):
    items: list[dict[str, Any]] = [
        {"type": "local_shell_call", "call_id": "l", "action": {"type": "exec", "env": {}, "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "l", **OUTPUTS["local_shell"]},
        {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"], **LIMITS}},
        {"type": "shell_call_output", "call_id": "a", **OUTPUTS["shell"]},
        {"type": "apply_patch_call", "call_id": "b", "operation": CALLS[2][2]["operation"], "status": "completed"},
        {"type": "apply_patch_call_output", "call_id": "b", **OUTPUTS["apply_patch"]},
    ]
    sent = [*items]
    sent[1] = {"type": "local_shell_call_output", "id": "l", **OUTPUTS["local_shell"]}  # the id of its call
    items.append({"type": "custom_tool_call", "call_id": "d", "name": "edit", "input": "x"})
    items.append({"type": "custom_tool_call_output", "call_id": "d", "output": "done"})
    items.append({"type": "function_call", "call_id": "e", "namespace": "n", "name": "f", "arguments": "{}"})
    items.append({"type": "function_call_output", "call_id": "e", "output": "done"})
    sent += items[6:]
    client = LocalClient(saying(b"Hi"))
    client.context = 4096
    async with front_of(client, tokenizer, HERMES) as front:
        if kept_in == "conversation":
            id = (await front.http.post("/v1/conversations", json={"items": sent})).json()["id"]
            path, again = f"/v1/conversations/{id}/items", {"conversation": id}
        else:
            id = (await front.http.post("/v1/responses", json={"input": sent})).json()["id"]
            path, again = f"/v1/responses/{id}/input_items", {"previous_response_id": id}
        listed = await front.http.get(path, params={"order": "asc"})
        check(ResponseItemList, listed.content)
        kept = listed.json()["data"]
        assert [{name: item.get(name) for name in given} for item, given in zip(kept, items, strict=True)] == items
        assert all(item["id"].startswith(prefix) for item, prefix in zip(kept, PREFIXES, strict=True))
        counted = await front.http.post("/v1/responses/input_tokens", json={"input": "And?"} | again)
        assert counted.status_code == 200, counted.text
        references = [{"type": "item_reference", "id": item["id"]} for item in kept]
        if kept_in == "response":
            again = await front.http.post("/v1/responses/input_tokens", json={"input": references})
            whole = await front.http.post("/v1/responses/input_tokens", json={"input": sent})
            assert again.json() == whole.json()


async def test_unknown_names_inside_have_a_warning(front):
    shell = {"type": "shell", "environment": {"type": "local", "skils": []}, "allowed_callers": ["direct"]}
    call = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"], "timeout": 1}}
    patch = {"type": "apply_patch_call", "call_id": "b", "operation": {"type": "delete_file", "path": "p", "x": 1}}
    body = {"tools": [shell], "input": [call, patch, {"role": "user", "content": "x"}]}
    answer = await front.http.post("/v1/responses/input_tokens", json=body)
    assert answer.status_code == 200, answer.text
    warning = answer.headers["warning"]
    for name in ("tools[0].environment.skils", "input[0].action.timeout", "input[1].operation.x"):
        assert name in warning
    assert "callers" not in warning
