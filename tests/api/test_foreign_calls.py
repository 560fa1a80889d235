"""Calls of tools that another server has run, in a conversation that began there: a line of text, or a 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from api.harness import LocalClient, front_of, make_tokenizer, saying
from api.talks import talk_to
from api.test_client_types import check
from api.test_foreign_content import LINES
from tailrace.api.foreign_calls import BLOCKS, ITEMS
from tailrace.config import ServerConfig

Case = tuple[str, dict[str, Any], str]
PNG = "data:image/png;base64,AAAA"
SAFETY = [{"id": "s", "code": "c", "message": "m"}]
CALLS: list[Case] = [
    (
        "web_search_call",
        {"id": "ws", "status": "completed", "action": {"type": "search", "query": "cats", "queries": ["cats"]}},
        '{"action":{"type":"search","query":"cats","queries":["cats"]}}',
    ),
    (
        "web_search_call",
        {"id": "ws", "status": "failed", "action": {"type": "find_in_page", "url": "http://a", "pattern": "b"}},
        '{"action":{"type":"find_in_page","url":"http://a","pattern":"b"},"status":"failed"}',
    ),
    (
        "file_search_call",
        {"id": "fs", "queries": ["q"], "results": [{"file_id": "f", "filename": "a.txt", "score": 0, "text": "hi"}]},
        '{"queries":["q"],"results":[{"filename":"a.txt","score":0,"text":"hi"}]}',
    ),
    (
        "code_interpreter_call",
        {"id": "ci", "code": "1+1", "container_id": "c", "outputs": [{"type": "logs", "logs": "2"}]},
        '{"code":"1+1","outputs":[{"type":"logs","logs":"2"}]}',
    ),
    ("code_interpreter_call", {"id": "ci", "code": None, "container_id": "c", "outputs": None}, ""),
    ("image_generation_call", {"id": "ig", "result": "AAAA", "revised_prompt": "cat"}, '{"revised_prompt":"cat"}'),
    (
        "computer_call",
        {
            "id": "c",
            "call_id": "x",
            "pending_safety_checks": SAFETY,
            "action": {"type": "click", "x": 0, "y": 2, "button": "left"},
        },
        '{"action":{"type":"click","button":"left","x":0,"y":2}}',
    ),
    (
        "computer_call_output",
        {"call_id": "x", "output": {"type": "computer_screenshot", "image_url": PNG}},
        '{"output":{"type":"computer_screenshot"}}',
    ),
    ("tool_search_call", {"arguments": {"query": "w"}, "execution": "server"}, '{"arguments":{"query":"w"}}'),
    ("tool_search_output", {"tools": []}, ""),
    (
        "mcp_call",
        {"id": "m", "name": "find", "server_label": "hub", "arguments": '{"q": 1}', "output": "none", "error": None},
        '{"name":"find","arguments":"{\\"q\\": 1}","output":"none","server_label":"hub"}',
    ),
    (
        "mcp_call",  # a text that begins like a URL, as in a stream of events
        {"id": "m", "name": "f", "server_label": "hub", "arguments": "{}", "output": "data: five;base64,6"},
        '{"name":"f","arguments":"{}","output":"data: five;base64,6","server_label":"hub"}',
    ),
    (
        "tool_search_call",
        {"arguments": {"id": 7, "tools": [], "url": PNG}, "execution": "server"},
        f'{{"arguments":{{"id":7,"tools":[],"url":"{PNG}"}}}}',
    ),
    ("mcp_list_tools", {"id": "l", "server_label": "hub", "tools": []}, '{"server_label":"hub"}'),
    (
        "mcp_approval_request",
        {"id": "r", "name": "find", "server_label": "hub", "arguments": "{}"},
        '{"name":"find","arguments":"{}","server_label":"hub"}',
    ),
    ("mcp_approval_response", {"approval_request_id": "r", "approve": False}, '{"approve":false}'),
    ("program", {"id": "p", "call_id": "c", "code": "f()", "fingerprint": "x"}, '{"code":"f()"}'),
    ("program_output", {"id": "p", "call_id": "c", "result": "3", "status": "completed"}, '{"result":"3"}'),
]
FOUND = {"type": "web_search_result", "title": "Cats", "url": "http://a", "encrypted_content": "E", "page_age": None}
PAGE = {"type": "document", "title": "t", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
RAN = {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0, "content": []}
WROTE: list[Case] = [
    (
        "server_tool_use",
        {"id": "s", "name": "web_search", "input": {"query": "q"}},
        '{"name":"web_search","input":{"query":"q"}}',
    ),
    (
        "web_search_tool_result",
        {"tool_use_id": "s", "content": [FOUND]},
        '{"content":[{"type":"web_search_result","title":"Cats","url":"http://a"}]}',
    ),
    (
        "web_search_tool_result",
        {"tool_use_id": "s", "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}},
        '{"content":{"type":"web_search_tool_result_error","error_code":"unavailable"}}',
    ),
    (
        "web_fetch_tool_result",
        {"tool_use_id": "s", "content": {"type": "web_fetch_result", "url": "http://a", "content": PAGE}},
        '{"content":{"type":"web_fetch_result","content":{"type":"document","title":"t","source":'
        '{"type":"base64","media_type":"application/pdf"}},"url":"http://a"}}',
    ),
    (
        "code_execution_tool_result",
        {"tool_use_id": "s", "content": RAN},
        '{"content":{"type":"code_execution_result","stdout":"2","return_code":0}}',
    ),
    (
        "bash_code_execution_tool_result",
        {"tool_use_id": "s", "content": RAN | {"type": "bash_code_execution_result"}},
        '{"content":{"type":"bash_code_execution_result","stdout":"2","return_code":0}}',
    ),
    (
        "text_editor_code_execution_tool_result",
        {"tool_use_id": "s", "content": {"type": "x", "lines": ["-a", "+b"]}},
        '{"content":{"type":"x","lines":["-a","+b"]}}',
    ),
    (
        "tool_search_tool_result",
        {
            "tool_use_id": "s",
            "content": {"type": "x", "tool_references": [{"type": "tool_reference", "tool_name": "f"}]},
        },
        '{"content":{"type":"x","tool_references":[{"type":"tool_reference","tool_name":"f"}]}}',
    ),
    (
        "mcp_tool_use",
        {"id": "m", "name": "find", "server_name": "hub", "input": {"q": 1}},
        '{"name":"find","input":{"q":1},"server_name":"hub"}',
    ),
    (
        "mcp_tool_use",  # its arguments are named by the tool
        {"id": "m", "name": "get", "server_name": "hub", "input": {"id": 7, "tools": ["a"], "status": "completed"}},
        '{"name":"get","input":{"id":7,"tools":["a"],"status":"completed"},"server_name":"hub"}',
    ),
    (
        "mcp_tool_result",
        {"tool_use_id": "m", "is_error": True, "content": [{"type": "text", "text": "no"}]},
        '{"content":[{"type":"text","text":"no"}],"is_error":true}',
    ),
    ("mcp_tool_listing", {"mcp_server_name": "hub", "tools": []}, '{"mcp_server_name":"hub"}'),
    (
        "advisor_tool_result",
        {"tool_use_id": "s", "content": {"type": "advisor_result", "text": "wait"}},
        '{"content":{"type":"advisor_result","text":"wait"}}',
    ),
    ("compaction", {"content": "before"}, '{"content":"before"}'),
]
PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}


def test_each_type_has_a_case():
    assert {kind for kind, _, _ in CALLS} == ITEMS
    assert {kind for kind, _, _ in WROTE} == BLOCKS


def write_body(path: str, part: dict[str, Any]) -> dict[str, Any]:
    """A conversation in which the model's turn has the part between two texts."""
    asked = {"role": "user", "content": "q"}
    if path == "/v1/responses":
        said = {"role": "assistant", "content": "So"}
        return {"input": [asked, said, part, said, {"role": "user", "content": "and?"}]}
    text = {"type": "text", "text": "So"}
    turn = {"role": "assistant", "content": [text, part, text]}
    return {"max_tokens": 5, "messages": [asked, turn, {"role": "user", "content": "and?"}]}


async def ask(tmp_path: Any, path: str, body: dict[str, Any], policy: str = "drop") -> tuple[Any, str]:
    """The answer, and the prompt."""
    tokenizer, prompts = make_tokenizer(tmp_path, LINES), [""]
    encode = tokenizer.encode
    tokenizer.encode = lambda text, *args, **kwargs: (prompts.append(text), encode(text, *args, **kwargs))[1]
    client = LocalClient(saying(b"Hi"))
    client.context = 2048
    config = ServerConfig(foreign_tools=policy, unknown_fields="refuse")  # pyright: ignore[reportArgumentType]
    async with front_of(client, tokenizer, config) as front:
        answer = await front.http.post(path, json=body)
    return answer, prompts[-1]


BOTH = [("/v1/responses", *case) for case in CALLS] + [("/v1/messages", *case) for case in WROTE]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "kind", "fields", "line"), BOTH)
async def test_a_call_becomes_a_line(
    tmp_path: Any, path: str, kind: str, fields: dict[str, Any], line: str, stream: bool
):
    answer, prompt = await ask(tmp_path, path, write_body(path, {"type": kind} | fields) | {"stream": stream})
    assert answer.status_code == 200, answer.text
    shown = f"[{kind}: {line}]" if line else f"[{kind}]"
    assert prompt == f"qSo\n\n{shown}\n\nSoand?="
    assert answer.headers.get_list("warning") == [
        f'299 tailrace "written as text, because no such tools are served here: {kind}"'
    ]


@pytest.mark.parametrize(("path", "kind", "fields", "line"), [BOTH[0], BOTH[len(CALLS)]])
async def test_the_operator_may_refuse_them(tmp_path: Any, path: str, kind: str, fields: dict[str, Any], line: str):
    answer, _ = await ask(tmp_path, path, write_body(path, {"type": kind} | fields), "refuse")
    assert answer.status_code == 400
    problem = answer.json()["error"]
    place = "input[2].type" if path == "/v1/responses" else "messages[1].content[1].type"
    assert problem.get("details", problem)["param"] == place
    assert kind in problem["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", write_body("/v1/responses", {"type": "web_serch_call"}), "input[2].type"),
        ("/v1/responses", write_body("/v1/responses", {"type": "additional_tools"}), "input[2].type"),
        ("/v1/messages", write_body("/v1/messages", {"type": "server_tool"}), "messages[1].content[1].type"),
        (
            "/v1/messages",  # only a model's turn has such calls
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type",
        ),
        ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call_output", "call_id": "a", "output": {"type": "input_text", "text": "a"}}
                ]
            },
            "input[0].output",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": {"type": "text"}}],
                    },
                ],
            },
            "messages[1].content[0].content",
        ),
    ],
)
async def test_what_stays_refused(tmp_path: Any, path: str, body: dict[str, Any], param: str):
    answer, _ = await ask(tmp_path, path, body)
    assert answer.status_code == 400, answer.text
    problem = answer.json()["error"]
    assert problem.get("details", problem)["param"] == param, answer.text


@pytest.mark.parametrize("depth", [100, 400, 900, 2000])
async def test_a_call_of_any_depth_has_an_answer(tmp_path: Any, depth: int):
    part: dict[str, Any] = {"type": "file_search_call", "queries": "DEEP"}
    raw = json.dumps(write_body("/v1/responses", part)).replace('"DEEP"', "[" * depth + "1" + "]" * depth)
    async with front_of(LocalClient(saying(b"Hi")), make_tokenizer(tmp_path, LINES), ServerConfig()) as front:
        answer = await front.http.post("/v1/responses", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), answer.text


async def test_thoughts_and_calls_around_are_one_turn(tmp_path: Any):
    think = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    search = {"type": "web_search_call", "action": {"type": "search", "query": "a"}}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    async with talk_to(tmp_path) as talk:
        items = [{"role": "user", "content": "q"}, think, search, think, search, call, result]
        await talk.post(input=items)
        assert "hm\n\nhm" in talk.prompts[-1]
        assert talk.prompts[-1].count("|assistant\n") == 2


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations"])
async def test_lists_have_the_items_as_they_were_sent(tmp_path: Any, path: str):
    sent = [{"type": kind} | fields for kind, fields, _ in CALLS]
    async with talk_to(tmp_path / "model", context=8192) as talk:
        if path == "/v1/responses":
            id = (await talk.post(input=[{"role": "user", "content": "q"}, *sent]))["id"]
            page = f"/v1/responses/{id}/input_items?order=asc&limit=100"
            listed = (await talk.get(page))["data"][1:]
            check(ResponseItemList, (await talk.http.get(page)).content)
            again = {"previous_response_id": id}
        else:
            id = (await talk.post(path, items=sent))["id"]
            listed = (await talk.get(f"{path}/{id}/items?order=asc&limit=100"))["data"]
            again = {"conversation": id}
        for item, given in zip(listed, sent, strict=True):
            own = {name: value for name, value in given.items() if name != "id" and value is not None}
            assert own.items() <= strip_of(item, own).items()
        await talk.post(input="and?", **again)
        assert '[web_search_call: {"action"' in talk.prompts[-1]


def strip_of(item: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """An item, with what is not kept of coordinates and images."""
    item = dict(item)
    for name in ("action", "output"):
        if isinstance(given.get(name), dict):
            assert item[name].items() <= given[name].items()
            item[name] = given[name]
    return item
