"""Anthropic's Messages API: the same prompt and the same generation as a chat, in blocks and events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from api.harness import MARK, VOCAB, LocalClient, endless, front_of, saying
from tailrace.api.message_events import input_of
from tailrace.config import ServerConfig
from tailrace.engine.token_bytes import TokenBytes

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "name": "add",
    "description": "Adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
PARSERS = ServerConfig(reasoning_parser="think", tool_parser="hermes")


async def post(front, **fields: Any) -> httpx.Response:
    return await front.http.post(PATH, json={"messages": HI, "max_tokens": 50, "temperature": 0} | fields)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events, each checked to stand under its own name."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events say, made as Anthropic's client makes it; their order is checked."""
    assert [event["type"] for event in events[:1] + events[-2:]] == ["message_start", "message_delta", "message_stop"]
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    arguments, begun = "", False
    for event in events[1:-2]:
        at, blocks = event["index"], message["content"]
        if event["type"] == "content_block_start":
            assert at == len(blocks)
            blocks.append(event["content_block"])
            arguments, begun = "", True
        elif event["type"] == "content_block_stop":
            assert at == len(blocks) - 1
            assert begun
            begun = False
            if blocks[at]["type"] == "tool_use":
                blocks[at]["input"] = input_of(arguments)
        else:
            assert begun
            assert at == len(blocks) - 1
            [(name, value)] = [(n, v) for n, v in event["delta"].items() if n != "type"]
            if name == "partial_json":
                arguments += value
            else:
                blocks[at][name] += value
    return message | events[-2]["delta"] | {"usage": events[-2]["usage"]}


def alike(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer."""
    usage = message["usage"]
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return message | {"id": "", "content": blocks, "usage": usage["output_tokens"]}


async def test_a_whole_message(front):
    answer = (await post(front, metadata={"user_id": "u"}, service_tier="auto")).json()
    assert answer["content"] == [{"type": "text", "text": "Hello"}]  # the AI SDK refuses null citations
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "scripted")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] == 6


async def test_the_stream_says_the_same(tokenizer):
    script = saying(f"<think>hm</think>So {CALL}{CALL}".encode())
    async with front_of(LocalClient(script), tokenizer, PARSERS) as front:
        whole = (await post(front, tools=[TOOL], max_tokens=180)).json()
        events = events_of((await post(front, tools=[TOOL], max_tokens=180, stream=True)).text)
        assert alike(folded(events)) == alike(whole)
        assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        assert whole["content"][0]["thinking"] == "hm"
        assert whole["content"][0]["signature"]
        assert [block["input"] for block in whole["content"][2:]] == [{"a": 1}] * 2
        assert whole["stop_reason"] == "tool_use"
        assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": len("hm")}


async def test_thoughts_that_are_not_shown(tokenizer):
    async with front_of(LocalClient(saying(b"<think>hm</think>So")), tokenizer, PARSERS) as front:
        thinking = {"type": "adaptive", "display": "omitted"}
        answer = await post(front, thinking=thinking, stream=True)
        message = folded(events_of(answer.text))
        assert message["content"][0]["thinking"] == ""
        assert message["content"][0]["signature"]
        assert message["content"][1]["text"] == "So"


async def test_a_thinking_budget_is_kept(tokenizer):
    """The model would think for ever: the closing marker is forced, and what comes behind it is text."""

    def script(ids: list[int]) -> int:
        said = bytes(id for id in ids if id < 256).rpartition(MARK)[2]
        return b"<think>"[len(said)] if len(said) < 7 else ord("a")

    async with front_of(LocalClient(script), tokenizer, PARSERS) as front:
        front.client.engine.token_bytes = TokenBytes.of(tokenizer, VOCAB)
        answer = (await post(front, thinking={"type": "enabled", "budget_tokens": 3}, max_tokens=20)).json()
        assert [block.get("thinking") or block.get("text") for block in answer["content"]] == ["aaa", "aa"]
        assert answer["stop_reason"] == "max_tokens"


CHATS = [
    ({"messages": HI}, {"messages": HI}),
    (
        {"messages": HI, "system": "Be brief."},
        {"messages": [{"role": "system", "content": "Be brief."}, *HI]},
    ),
    (
        {
            "messages": HI,
            "system": [
                {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "brief"},
            ],
        },
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
                *HI,
            ]
        },
    ),
    (
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "So"},
                        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                        {"type": "tool_use", "id": "t2", "name": "add", "input": {"a": 2}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "3", "is_error": False},
                        {
                            "type": "tool_result",
                            "tool_use_id": "t2",
                            "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}],
                            "is_error": True,
                        },
                        {"type": "text", "text": "and?"},
                    ],
                },
            ],
            "tools": [TOOL],
        },
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": "So",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                        {"id": "t2", "type": "function", "function": {"name": "add", "arguments": '{"a":2}'}},
                    ],
                },
                {"role": "tool", "tool_call_id": "t1", "content": "3"},
                {
                    "role": "tool",
                    "tool_call_id": "t2",
                    "content": [{"type": "text", "text": "Error: no"}, {"type": "text", "text": "way"}],
                },
                {"role": "user", "content": "and?"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "add", "description": "Adds", "parameters": TOOL["input_schema"]},
                }
            ],
        },
    ),
    (
        {"messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Hel"}]}]},
        {
            "messages": [*HI, {"role": "assistant", "content": "Hel"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
    (
        {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "none"}},
        {"messages": HI},
    ),
    (
        {"messages": HI, "chat_template_kwargs": {"shout": True}},
        {"messages": HI, "chat_template_kwargs": {"shout": True}},
    ),
]


@pytest.fixture
async def telling(tokenizer, monkeypatch):
    """A front end, and what its template says."""
    async with front_of(LocalClient(endless), tokenizer) as front:
        seen: list[Any] = []
        render = front.service.tokenizer.render_chat

        def noted(messages: Any, **options: Any) -> str:
            seen.append((render(messages, **options), options))
            return seen[-1][0]

        monkeypatch.setattr(front.service.tokenizer, "render_chat", noted)
        yield front, seen


@pytest.mark.parametrize(("asked", "chat"), CHATS)
async def test_the_prompt_is_that_of_the_chat_which_says_the_same(telling, asked, chat):
    front, seen = telling
    ours = await front.http.post(COUNT, json=asked)
    assert ours.status_code == 200, ours.text
    theirs = await front.http.post("/tokenize", json=chat)
    message = await post(front, **asked, max_tokens=2)
    usage = message.json()["usage"]
    assert seen[0] == seen[1] == seen[2]
    assert ours.json() == {"input_tokens": theirs.json()["count"]}
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == theirs.json()["count"]


async def test_thinking_and_effort_are_arguments_of_the_template(telling, monkeypatch):
    """The effort under the name that the template reads, as in chats."""
    front, seen = telling
    monkeypatch.setattr(front.service.tokenizer, "template_reads", lambda name: name in ("thinking_effort", "thinking"))
    for thinking, effort, options in (
        ({"type": "disabled"}, None, {"enable_thinking": None, "thinking": False}),
        ({"type": "enabled"}, None, {"thinking": True}),  # without a budget, as Claude Code sends it
        ({"type": "adaptive"}, "low", {"thinking": True, "thinking_effort": "low"}),
    ):
        asked = {"messages": HI, "thinking": thinking, "output_config": {"effort": effort}}
        assert (await front.http.post(COUNT, json=asked)).status_code == 200
        given = seen[-1][1]
        assert {name: given.get(name) for name in options} == options
    own = {"messages": HI, "thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}
    await front.http.post(COUNT, json=own)
    assert seen[-1][1]["enable_thinking"] is True
    own = {"messages": HI, "output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "odd"}}
    await front.http.post(COUNT, json=own)
    assert (seen[-1][1]["reasoning_effort"], seen[-1][1].get("thinking_effort")) == ("odd", "odd")


async def test_stop_sequences(front):
    answer = (await post(front, stop_sequences=["lo", "x"])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "lo")
    assert answer["content"][0]["text"] == "Hel"


async def test_the_limit_and_the_context(tokenizer):
    async with front_of(LocalClient(endless), tokenizer) as front:
        assert (await post(front, max_tokens=3)).json()["stop_reason"] == "max_tokens"
        answer = (await post(front, max_tokens=64_000)).json()
        assert answer["stop_reason"] == "model_context_window_exceeded"
        usage = answer["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 256
        refused = await post(front, messages=[{"role": "user", "content": "x" * 300}])
        problem = refused.json()["error"]
        assert (refused.status_code, problem["type"]) == (400, "invalid_request_error")
        assert problem["message"].startswith("prompt is too long: ")
        assert problem["details"]["error_code"] == "context_length_exceeded"


async def test_what_ended_early_can_go_on(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        answer = (await post(front, max_tokens=200, deadline_s=0.05)).json()
        assert answer["stop_reason"] == "pause_turn"


async def test_sampling_fields_are_ours(tokenizer):
    async with front_of(LocalClient(endless), tokenizer) as front:
        fields = {"top_k": 5, "min_p": 0.1, "dry_multiplier": 0.5, "seed": 1, "temperature": 0.5}
        answer = (await post(front, return_sampling_params=True, max_tokens=2, **fields)).json()
        assert fields.items() <= answer["sampling_params"].items()


@pytest.mark.parametrize(
    ("text", "found"), [("{}", {}), ("", None), ('{"a": 1}', {"a": 1}), ('{"a": ', None), ("[1]", None)]
)
def test_the_input_of_a_call_is_an_object(text, found):
    assert input_of(text) == ({"INVALID_JSON": text} if found is None else found)


async def test_a_call_that_is_cut(tokenizer):
    async with front_of(LocalClient(saying(CALL.encode())), tokenizer, PARSERS) as front:
        answer = (await post(front, tools=[TOOL], max_tokens=46)).json()
        assert (answer["stop_reason"], answer["content"][0]["type"]) == ("max_tokens", "tool_use")
        assert "INVALID_JSON" in answer["content"][0]["input"]


REPAIRED = {'{"a":True}': {"a": True}, "null": {}, '{"a":NaN}': {"a": None}}
NO_ARGUMENTS = ("[1]", "3", '"x"')  # the call is content


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "arguments",
    [
        *("{}", r'{"a":"\ud800"}', '{"a":1,"b":[null,"é"]}', '{"a":18446744073709551617}', '{"a":1e999}', '{"a":' * 20),
        *REPAIRED,
        *NO_ARGUMENTS,
    ],
)
async def test_the_stream_has_the_input_of_the_whole_message(tokenizer, arguments):
    """Each block's deltas are the arguments as they grow; what they give is the whole answer's, broken or cut
    anywhere."""
    text = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
    first = text.index(arguments)
    async with front_of(LocalClient(saying(text.encode())), tokenizer, PARSERS) as front:
        inputs = []
        for limit in (first - 1, first, first + 1, first + len(arguments) // 2, first + len(arguments), 170):
            whole = (await post(front, tools=[TOOL], max_tokens=limit)).json()
            events = events_of((await post(front, tools=[TOOL], max_tokens=limit, stream=True)).text)
            assert alike(folded(events)) == alike(whole)
            parts = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
            inputs = [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
            assert all(isinstance(input, dict) for input in inputs)
            if inputs == [{"INVALID_JSON": ""}]:
                assert [json.loads(part) for part in parts] == inputs
            elif inputs:
                assert all(parts)
                assert input_of("".join(parts)) == inputs[0]
                assert len(parts) > 1 or len(parts[0]) < 20, "the arguments leave as they are written"
            if limit <= first + len(arguments) // 2 and inputs and arguments != "{}":
                assert list(inputs[0]) == ["INVALID_JSON"]
        assert bool(inputs) == (arguments not in NO_ARGUMENTS)
        assert any("INVALID_JSON" in one for one in inputs) == (arguments == '{"a":1e999}')
        if arguments in REPAIRED:
            assert inputs == [REPAIRED[arguments]]


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "n"}]}]},
            "messages[1].content[0].input",
        ),
        (
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "n", "input": {}}]},
                ]
            },
            "messages[1]",
        ),
        (
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "n", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "j", "content": "x"}]},
                ]
            },
            "messages[2].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "thinking"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "must"}}, "tool_choice.type"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"verbosity": "low"}, "verbosity"),
        ({"think": False}, "think"),
        ({"thinking_budget": 3}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens"),  # the model does not think
        ({"thinking": {"type": "adaptive", "budget_tokens": 10}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["x"]}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"thinking_token_budget": 3}, "thinking.budget_tokens"),
        ({"thinking_token_budget": "x"}, "thinking.budget_tokens"),
        ({"thinking_token_budget": 3, "thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"documents": "x"}, "documents"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"container": "c"}, "container"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
async def test_what_is_refused(front, fields, param):
    body = {"messages": HI, "max_tokens": 50} | fields
    answer = await front.http.post(PATH, json={name: value for name, value in body.items() if value is not None})
    problem = answer.json()
    assert (answer.status_code, problem["type"], problem["error"]["type"]) == (400, "error", "invalid_request_error")
    assert problem["error"]["details"]["param"] == param, problem
    assert param.partition(".")[0].partition("[")[0] in problem["error"]["message"]
    assert problem["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_schema_is_named_as_the_client_sent_it(tokenizer):
    broken = TOOL | {"strict": True, "input_schema": {"type": "object", "properties": {"a": {"type": 3}}}}
    for tool in (broken, broken | {"input_schema": {"type": "string"}}):
        async with front_of(LocalClient(saying(b"Hello")), tokenizer, PARSERS) as front:
            answer = await post(front, tools=[TOOL | {"name": "sub"}, tool])
            problem = answer.json()["error"]
            assert (answer.status_code, problem["details"]["param"]) == (400, "tools[1].input_schema")
            assert problem["message"].startswith("tools[1].input_schema")
            assert "parameters" not in problem["message"]


async def test_a_budget_under_a_chats_name_is_told_where_it_goes(front):
    answer = await post(front, thinking_token_budget=3)
    assert "thinking_token_budget" in answer.json()["error"]["message"]


async def test_a_thread_is_refused_by_the_code_that_the_client_knows(front):
    """The client then sends the whole conversation (tests/clients: the tool runner)."""
    answer = await post(front, thread={"type": "create"})
    details = answer.json()["error"]["details"]
    assert (answer.status_code, details) == (400, {"error_code": "thread_unsupported_request", "param": "thread"})


async def test_errors_have_anthropics_shape(tokenizer):
    config = ServerConfig(api_keys="one", max_body_mib=1)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:

        async def kind(status: int, method: str = "POST", path: str = PATH, **how: Any) -> str:
            how = {"json": {"messages": HI, "max_tokens": 5}, "headers": {"x-api-key": "one"}} | how
            answer = await front.http.request(method, path, **how)
            assert (answer.status_code, answer.json()["type"]) == (status, "error"), answer.text
            return answer.json()["error"]["type"]

        assert await kind(401, headers={"x-api-key": "two"}) == "authentication_error"
        assert await kind(404, json={"model": "gpt-17", "messages": HI, "max_tokens": 5}) == "not_found_error"
        assert await kind(404, path=f"{PATH}/nothing") == "not_found_error"
        assert await kind(405, method="GET") == "invalid_request_error"
        assert (
            await kind(413, content="x" * (2 << 20), headers={"x-api-key": "one", "content-type": "application/json"})
            == "request_too_large"
        )
        assert await kind(415, content="x") == "invalid_request_error"
        front.client.die()
        assert await kind(503) == "overloaded_error"
        other = await front.http.post("/v1/chat/completions", headers={"x-api-key": "two"})
        assert other.json()["error"]["param"] is None, "other endpoints keep OpenAI's shape"


async def test_an_engine_that_dies_on_the_way_is_an_error_event(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        asking = asyncio.create_task(post(front, max_tokens=200, stream=True))
        await front.until(lambda: front.client.engine.counters.generated_tokens > 3)
        front.client.die()
        last = events_of((await asking).text)[-1]
        assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
        assert last["error"]["details"]["error_code"] == "engine_dead"


async def test_silence_is_filled_with_pings(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.3), tokenizer, ServerConfig(keep_alive_s=0.05)) as front:
        events = events_of((await post(front, max_tokens=2, stream=True)).text)
        assert {"type": "ping"} in events
        assert events[-1]["type"] == "message_stop"


@pytest.mark.parametrize("given", ['{"a": ', "", None, [], {"a": 1}])
async def test_a_cut_call_in_the_history_is_taken(given, tokenizer):
    history = [
        *HI,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": given}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "3"}]},
        {"role": "developer", "content": "Be brief."},
    ]
    async with front_of(LocalClient(saying(b"ok")), tokenizer) as front:
        body = {"messages": history, "max_tokens": 2, "tools": [TOOL]}
        answer = await front.http.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        refused = await front.http.post("/v1/messages", json=body | {"parallel_tool_calls": False})
        assert (refused.status_code, refused.json()["error"]["message"].split(":")[0]) == (400, "parallel_tool_calls")


async def test_a_reference_to_a_tool_is_text(front):
    def history(*content: dict) -> list[dict]:
        call = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [*content]}
        return [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    async def count(*content: dict) -> int:
        asked = {"messages": history(*content), "tools": [TOOL]}
        return (await front.http.post(f"{PATH}/count_tokens", json=asked)).json()["input_tokens"]

    text, reference = {"type": "text", "text": "found"}, {"type": "tool_reference", "tool_name": "add"}
    named = {"type": "text", "text": "Available tool: add"}
    assert await count(text, reference) == await count(text, named) != await count(text)
    assert (await post(front, messages=history(reference), tools=[TOOL])).status_code == 200
    for wrong, message in (
        ({"type": "tool_reference"}, "required, but missing"),
        (reference | {"tool_name": "sub"}, 'tools has no "sub"'),
    ):
        refused = (await post(front, messages=history(text, wrong), tools=[TOOL])).json()["error"]
        place = "messages[2].content[0].content[1].tool_name"
        assert (refused["message"], refused["details"]["param"]) == (f"{place}: {message}", place)
