"""The Responses API: whole and streamed from the same events; stored, continued, cancelled."""

from __future__ import annotations

import asyncio
import json

import pytest

from api.harness import LocalClient, endless, front_of, saying
from tailrace.api.response_store import ResponseShare, ResponseStore
from tailrace.api.schema.response_items import OutputItem
from tailrace.api.schema.responses import ResponseObject, TextOptions
from tailrace.api.stored import Stored
from tailrace.config import ServerConfig
from tailrace.text.tokenizer import Tokenizer

PATH = "/v1/responses"
TOOL = [{"type": "function", "name": "add", "parameters": {}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


async def post(front, **fields):
    return await front.http.post(PATH, json={"input": "hi", "temperature": 0} | fields)


def read(share: ResponseShare, id: str) -> Stored:
    """A response that is stored."""
    stored = share.find(id)
    assert stored is not None
    return stored


def events_of(text: str) -> list[dict]:
    """The events, each checked to stand under its own name."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_a_whole_response(front):
    answer = (await post(front, metadata={"k": "v"}, instructions="Be kind.")).json()
    [item] = answer["output"]
    assert (answer["object"], answer["status"], answer["metadata"]) == ("response", "completed", {"k": "v"})
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": []}]
    usage = answer["usage"]
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == usage["input_tokens"] + 6
    assert answer["incomplete_details"] is answer["error"] is None


async def test_the_streams_events(front):
    events = events_of((await post(front, stream=True)).text)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == events[-4]["text"] == "Hello"
    assert {event["item_id"] for event in events[3:-2]} == {events[2]["item"]["id"]}
    whole = (await post(front)).json()
    same = events[-1]["response"]
    assert same["output"][0]["content"] == whole["output"][0]["content"]
    assert same["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


async def test_thinking_and_tool_calls_are_items(tokenizer):
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    async with front_of(LocalClient(saying(f"<think>hm</think>So {CALL}".encode())), tokenizer, config) as front:
        answer = (await post(front, tools=TOOL)).json()
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
        assert answer["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
        call = answer["output"][2]
        assert (call["name"], call["arguments"], call["status"]) == ("add", '{"a": 1}', "completed")
        events = events_of((await post(front, tools=TOOL, stream=True)).text)
        assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2]
        done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
        assert json.loads(done["arguments"]) == {"a": 1}
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "add"}]},
            call,
            {"type": "function_call_output", "call_id": call["call_id"], "output": "1"},
        ]
        assert (await post(front, tools=TOOL, input=items)).json()["status"] == "completed"


async def test_cut_by_length(front):
    answer = (await post(front, max_output_tokens=3)).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["content"][0]["text"] == "Hel"
    assert events_of((await post(front, max_output_tokens=3, stream=True)).text)[-1]["type"] == "response.incomplete"


async def test_stored_continued_deleted(front):
    first = (await post(front)).json()
    path = f"{PATH}/{first['id']}"
    assert (await front.http.get(path)).json() == first
    second = (await post(front, previous_response_id=first["id"], input="and?")).json()
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert (await front.http.delete(path)).json() == {"id": first["id"], "object": "response", "deleted": True}
    for answer in (await front.http.get(path), await front.http.delete(path), await front.http.post(f"{path}/cancel")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    gone = await post(front, previous_response_id=first["id"])
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "previous_response_id")
    unstored = (await post(front, store=False)).json()
    assert (await front.http.get(f"{PATH}/{unstored['id']}")).status_code == 404


def strip(data: list[dict]) -> list[dict]:
    """Items without what the server adds."""
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in data]


async def test_the_items_that_a_response_answers(front):
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]
    result = {"type": "function_call_output", "call_id": "c1", "output": parts}
    items = [{"role": "user", "content": "add"}, call, result]
    first = (await post(front, input=items, tools=TOOL, instructions="Be kind.")).json()
    path = f"{PATH}/{first['id']}/input_items"
    listed = (await front.http.get(path, params={"order": "asc"})).json()
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "add"}]}
    assert strip(listed["data"]) == [said, call, result]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert listed["first_id"] == listed["data"][0]["id"]
    assert (await front.http.get(path)).json()["data"] == listed["data"][::-1]
    got: list[dict] = []
    for _ in range(3):
        after = {"after": got[-1]["id"]} if got else {}
        page = (await front.http.get(path, params={"order": "asc", "limit": 1} | after)).json()
        got += page["data"]
        assert page["has_more"] == (len(got) < 3)
    assert got == listed["data"]
    second = (await post(front, previous_response_id=first["id"], input="and?")).json()
    more = (await front.http.get(f"{PATH}/{second['id']}/input_items", params={"order": "asc"})).json()["data"]
    said = [{"type": "output_text", "annotations": [], "text": "Hello"}]
    assert strip(more)[3] == {"type": "message", "role": "assistant", "content": said}
    assert strip(more)[4]["content"][0]["text"] == "and?"
    for name, value in (("limit", "0"), ("limit", "x"), ("limit", "101"), ("order", "up"), ("after", "x")):
        refused = await front.http.get(path, params={name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert (await front.http.get(f"{PATH}/resp_x/input_items")).status_code == 404


async def test_parts_of_a_tools_output_reach_the_prompt(front):
    parts = [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    for output, same in ((parts, "1\n2"), ([], "")):
        counts = [
            (await front.http.post(f"{PATH}/input_tokens", json={"input": [call, result]})).json()["input_tokens"]
            for result in (
                {"type": "function_call_output", "call_id": "c1", "output": output},
                {"type": "function_call_output", "call_id": "c1", "output": same},
            )
        ]
        assert counts[0] == counts[1]
    odd = [{"type": "function_call_output", "call_id": "c", "output": [{"type": "odd", "text": "x"}]}]
    refused = await post(front, input=odd)
    assert refused.json()["error"]["param"] == "input[0].output[0].type"


async def test_a_refusal_of_before_is_text(front):
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    text = {"role": "assistant", "content": "No."}
    counts = [
        (await front.http.post(f"{PATH}/input_tokens", json={"input": [turn]})).json()["input_tokens"]
        for turn in (refusal, text)
    ]
    assert counts[0] == counts[1]
    kept = (await front.http.post("/v1/conversations", json={"items": [refusal]})).json()["id"]
    [item] = (await front.http.get(f"/v1/conversations/{kept}/items")).json()["data"]
    assert item["content"] == [{"type": "output_text", "annotations": [], "text": "No."}]


@pytest.fixture
def seen(front, monkeypatch) -> list[list[dict]]:
    """The messages of every prompt that the front end renders."""
    found: list[list[dict]] = []
    render = front.service.tokenizer.render_chat

    def noted(messages, **options):
        found.append(messages)
        return render(messages, **options)

    monkeypatch.setattr(front.service.tokenizer, "render_chat", noted)
    return found


CALLS = [{"type": "function_call", "call_id": id, "name": "add", "arguments": "{}"} for id in ("c1", "c2")]
SAID = {"role": "assistant", "content": "So"}


def thought(text: str, field: str = "content") -> dict:
    kind = {"content": "reasoning_text", "summary": "summary_text"}[field]
    return {"type": "reasoning", "summary": [], field: [{"type": kind, "text": text}]}


@pytest.mark.parametrize(
    ("own", "content", "thoughts"),
    [
        (CALLS, "", None),
        ([SAID, *CALLS], "So", None),
        ([CALLS[0], {"type": "reasoning", "summary": []}, CALLS[1]], "", None),
        ([thought("hm"), *CALLS], "", "hm"),
        ([thought("hm", "summary"), SAID, *CALLS], "So", "hm"),
        ([thought("a"), CALLS[0], thought("b"), CALLS[1]], "", "a\n\nb"),
        ([SAID, thought("hm"), *CALLS], "So", "hm"),
        ([*CALLS, SAID], "So", None),
    ],
)
async def test_what_a_model_wrote_in_one_answer_is_one_turn(front, seen, own, content, thoughts):
    """Given back as items, it reaches the template as it does behind previous_response_id."""
    results = [{"type": "function_call_output", "call_id": id, "output": id} for id in ("c1", "c2")]
    asked = {"input": [{"role": "user", "content": "hi"}, *own, *results, {"role": "user", "content": "and?"}]}
    assert (await front.http.post(f"{PATH}/input_tokens", json=asked)).status_code == 200
    assert [message["role"] for message in seen[-1]] == ["user", "assistant", "tool", "tool", "user"]
    turn = seen[-1][1]
    assert (turn["content"], [call["id"] for call in turn["tool_calls"]]) == (content, ["c1", "c2"])
    assert turn.get("reasoning_content") == thoughts


async def test_plain_messages_stay_apart_and_a_thought_may_be_all(front, seen):
    for own, said in (([SAID, SAID], ["So", "So"]), ([thought("hm")], [""])):
        asked = {"input": [{"role": "user", "content": "hi"}, *own, {"role": "user", "content": "and?"}]}
        assert (await front.http.post(f"{PATH}/input_tokens", json=asked)).status_code == 200
        assert [message["content"] for message in seen[-1]] == ["hi", *said, "and?"]
    assert seen[-1][1]["reasoning_content"] == "hm"


async def test_thoughts_of_before_reach_the_template(tokenizer, monkeypatch):
    """Models that think between their calls need them: stored, or sent back by the client, the same."""
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    async with front_of(LocalClient(saying(f"<think>hm</think>So {CALL}".encode())), tokenizer, config) as front:
        first = (await post(front, tools=TOOL)).json()
        call = first["output"][2]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
        stored = {"input": [result], "previous_response_id": first["id"]}
        whole = {"input": [{"role": "user", "content": "hi"}, *first["output"], result]}
        turns = []
        render = front.service.tokenizer.render_chat
        noted = lambda messages, **options: turns.append(messages) or render(messages, **options)  # noqa: E731
        monkeypatch.setattr(front.service.tokenizer, "render_chat", noted)
        answers = [(await post(front, **fields, tools=TOOL)).json() for fields in (stored, whole)]
        assert turns[0] == turns[1]
        assert (turns[0][1]["reasoning_content"], turns[0][1]["content"]) == ("hm", "So ")
        listed = [
            (await front.http.get(f"{PATH}/{answer['id']}/input_items", params={"order": "asc"})).json()["data"]
            for answer in answers
        ]
        assert strip(listed[0]) == strip(listed[1])
        assert [item["type"] for item in listed[0]][1:] == [*(item["type"] for item in first["output"]), result["type"]]
        assert strip(listed[0])[1] == {name: first["output"][0][name] for name in ("type", "summary", "content")}


async def test_tokens_are_counted_as_a_response_counts_them(front):
    first = (await post(front)).json()
    for fields in (
        {"input": "hi"},
        {"input": "hi", "instructions": "Be kind.", "tools": TOOL},
        {"input": "hi", "tools": TOOL, "tool_choice": "none"},
        {"input": "and?", "previous_response_id": first["id"]},
    ):
        counted = await front.http.post(f"{PATH}/input_tokens", json=fields)
        assert counted.json() == {
            "object": "response.input_tokens",
            "input_tokens": (await post(front, **fields)).json()["usage"]["input_tokens"],
        }
    assert (await front.http.post(f"{PATH}/input_tokens", json={"input": []})).status_code == 400


async def test_a_response_that_is_not_stored_is_named_alike(front):
    plain = await front.http.get(f"{PATH}/resp_nope")
    again = await front.http.get(f"{PATH}/resp_nope", params={"stream": "true"})
    assert (plain.status_code, again.status_code) == (404, 404)
    assert again.json()["error"]["message"] == plain.json()["error"]["message"] == 'no response "resp_nope" is stored'


async def test_an_output_belongs_to_a_call(front):
    """To one of this request, or of the conversation that it goes on with."""
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    made = await post(front, input=[{"role": "user", "content": "hi"}, call, output])
    assert made.status_code == 200
    again = await post(front, input=[output], previous_response_id=made.json()["id"])
    assert again.status_code == 200
    for place, id, items in (
        (1, '"c1"', [output]),
        (1, '"c1"', [output, call]),
        (2, '"c2"', [call, output | {"call_id": "c2"}]),
        (2, "null", [call, output | {"call_id": None}]),
        (3, '"c2"', [call, output, output | {"call_id": "c2"}]),
    ):
        refused = (await post(front, input=[{"role": "user", "content": "hi"}, *items])).json()["error"]
        name = f"input[{place}].call_id"
        assert refused["param"] == name
        assert refused["message"] == f"{name}: no tool call found for function call output with call_id {id}"


async def test_who_waits_for_events_is_woken():
    """By each event, and where the response is forgotten; nobody looks again by the clock."""
    store = ResponseStore().share_of("a")
    store.put(response("r"), [], streamed=True)
    store.record("r", b"one")
    await asyncio.wait_for(store.beyond("r", 0), 60)
    await asyncio.wait_for(store.beyond("absent", 0), 60)
    for change in (lambda: store.record("r", b"two"), lambda: store.discard("r")):
        first, second = (asyncio.ensure_future(store.beyond("r", len(read(store, "r").frames or ()))) for _ in range(2))
        await asyncio.sleep(0)
        assert not first.done()
        second.cancel()
        change()
        await asyncio.wait_for(first, 60)
    assert not any(store._waiting.values())  # pyright: ignore[reportPrivateUsage]


async def test_a_stream_is_read_again_from_any_event(front):
    text = (await post(front, stream=True)).text
    frames = text.split("\n\n")[:-1]
    path = f"{PATH}/{events_of(text)[0]['response']['id']}"
    assert (await front.http.get(path, params={"stream": "true"})).text == text
    for place in range(len(frames) - 1):
        again = await front.http.get(path, params={"stream": "true", "starting_after": place})
        assert again.text.split("\n\n")[:-1] == frames[place + 1 :]
    whole = (await post(front)).json()["id"]
    for name, params, at in (
        ("starting_after", {"stream": "true", "starting_after": len(frames) - 1}, path),
        ("starting_after", {"stream": "true", "starting_after": "-1"}, path),
        ("starting_after", {"starting_after": 1}, path),
        ("stream", {"stream": "yes"}, path),
        ("stream", {"stream": "true"}, f"{PATH}/{whole}"),
    ):
        refused = await front.http.get(at, params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_a_stream_is_read_by_another_while_it_goes_on(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        running = asyncio.ensure_future(post(front, stream=True, max_output_tokens=40))
        await front.until(lambda: len(front.app.state.front.responses) == 1)
        id = next(iter(front.service.open_requests)).id
        again = await front.http.get(f"{PATH}/{id}", params={"stream": "true"})
        assert again.text == (await running).text
        running = asyncio.ensure_future(post(front, stream=True, max_output_tokens=200))
        await front.until(lambda: len(front.app.state.front.responses) == 2)
        id = next(iter(front.service.open_requests)).id
        reading = asyncio.ensure_future(front.http.get(f"{PATH}/{id}", params={"stream": "true"}))
        await front.http.post(f"{PATH}/{id}/cancel")
        assert (await reading).text == (await running).text
        assert events_of((await reading).text)[-1]["response"]["status"] == "cancelled"


async def test_thoughts_are_counted(tokenizer):
    config = ServerConfig(reasoning_parser="think")
    async with front_of(LocalClient(saying(b"<think>hm</think>So")), tokenizer, config) as front:
        usage = (await post(front)).json()["usage"]
        assert usage["output_tokens_details"] == {"reasoning_tokens": len("hm")}
        chat = (await front.chat()).json()["usage"]
        assert chat["completion_tokens_details"]["reasoning_tokens"] == len("hm")


@pytest.mark.few(6)
@pytest.mark.parametrize("interval", [1, 7, 100])
@pytest.mark.parametrize(
    "said",
    ["<think>h<m</think>So << 1 <", "Hello", "<think>a</think>a", "a<think>a</think> b", f"So <{CALL}", "é€😀<think>x"],
)
async def test_the_logprobs_of_text_spell_it(tokenizer, said, interval):
    """However many tokens come at once, and however the markers lie: no token of thoughts, calls and markers."""
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": TOOL}
    async with front_of(LocalClient(saying(said.encode())), tokenizer, config) as front:
        answer = (await post(front, **include)).json()
        parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        assert parts
        for part in parts:
            assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode() == part["text"]
            assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
        events = events_of((await post(front, stream=True, stream_interval=interval, **include)).text)
        streamed = [entry for e in events if e["type"] == "response.output_text.delta" for entry in e["logprobs"]]
        assert streamed == [entry for part in parts for entry in part["logprobs"]]
        done = [entry for e in events if e["type"] == "response.output_text.done" for entry in e["logprobs"]]
        assert done == streamed


async def test_the_logprobs_of_text_behind_a_marker_that_no_token_wrote(tokenizer):
    """The template has opened the thought, and the format leaves it in the content, behind its marker."""
    opened = Tokenizer(tokenizer.backend, f"{tokenizer.template_source}<think>")
    config = ServerConfig(reasoning_parser="minimax_m2_append_think")
    # the script counts the template's marker to the answer
    async with front_of(LocalClient(saying(b"<think>hm</think>So it is")), opened, config) as front:
        answer = (await post(front, include=["message.output_text.logprobs"])).json()
        [part] = answer["output"][0]["content"]
        assert part["text"] == "<think>hm</think>So it is"
        spelt = bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode()
        assert spelt == part["text"].removeprefix("<think>")


async def test_cancelled_on_the_way(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        running = asyncio.ensure_future(post(front, request_id="mine", max_output_tokens=200))
        await front.until(lambda: len(front.app.state.front.responses) == 1)
        id = next(iter(front.service.open_requests)).id
        assert (await front.http.get(f"{PATH}/{id}")).json()["status"] == "in_progress"
        assert (await front.http.post(f"{PATH}/{id}/cancel")).json()["status"] == "cancelled"
        answer = (await running).json()
        assert (answer["status"], answer["incomplete_details"]) == ("cancelled", None)
        assert (await front.http.get(f"{PATH}/{id}")).json() == answer
        await front.until(front.client.idle)


async def test_a_label_that_another_request_has_as_well_takes_nothing_from_it(tokenizer):
    """Ids are ours; a label ends all running requests that have it, an id one."""
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        same = {"x-request-id": "same"}
        first, second = [
            await front.http.post(PATH, json={"input": text, "max_output_tokens": 3}, headers=same) for text in "ab"
        ]
        assert first.headers["x-request-id"] == second.headers["x-request-id"] == "same"
        assert first.json()["id"] != second.json()["id"]
        assert "same" not in first.json()["id"]
        for answer in (first, second):
            assert (await front.http.get(f"{PATH}/{answer.json()['id']}")).json() == answer.json()
        running = [
            asyncio.ensure_future(post(front, request_id="same", max_output_tokens=200, stream=False)) for _ in range(3)
        ]
        await front.until(lambda: len(front.service.open_requests) == 3)
        one = next(iter(front.service.open_requests)).id
        assert (await front.http.delete(f"/v1/requests/{one}")).json()["id"] == one
        await front.until(lambda: len(front.service.open_requests) == 2)
        assert (await front.http.delete("/v1/requests/same")).status_code == 200
        assert {(await answer).json()["status"] for answer in running} == {"cancelled"}


async def test_an_engine_that_dies_on_the_way_is_a_failed_response(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        running = asyncio.ensure_future(post(front, request_id="mine", max_output_tokens=200, stream=True))
        await front.until(lambda: len(front.app.state.front.responses) == 1)
        front.client.die()
        last = events_of((await running).text)[-1]
        error = last["response"]["error"]
        assert (last["type"], error["type"], error["code"]) == ("response.failed", "server_error", "engine_dead")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"text": "a"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "input[0].content[0].refusal"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 1000}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"guardrails": ["pii"]}, "guardrails"),
        ({"guardrail_config": {"guardrailIdentifier": "g"}}, "guardrail_config"),
        ({"safety_mode": "STRICT"}, "safety_mode"),
        ({"system_instruction": "Be brief."}, "system_instruction"),
        ({"plugins": [{"id": "web"}]}, "plugins"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output"}]}, "input[0]"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"truncation": "middle"}, "truncation"),
        ({"temperature": -1}, "temperature"),
    ],
)
async def test_what_is_refused(front, fields, param):
    answer = await post(front, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def response(id: str, text: str = "") -> ResponseObject:
    return ResponseObject(
        id=id,
        created_at=0,
        instructions=text,
        max_output_tokens=None,
        model="m",
        output=[],
        previous_response_id=None,
        store=True,
        temperature=1.0,
        top_p=1.0,
        tools=[],
        tool_choice="auto",
        text=TextOptions(),
        metadata={},
    )


def test_the_store_is_bounded_and_the_oldest_go_first():
    store = ResponseStore(max_responses=3, max_bytes=8000).share_of("a")
    for name in "abcd":
        store.put(response(name), [])
    assert len(store) == 3
    assert store.find("a") is None
    store.put(response("b", "again"), [])
    store.put(response("e"), [])
    assert "again" in read(store, "b").body.decode()
    assert store.find("c") is None
    store.put(response("big", "x" * 4000), [])
    assert store.bytes <= 8000
    for name in ("b", "d", "e", "big"):
        store.discard(name)
    assert (len(store), store.bytes) == (0, 0)


@pytest.fixture
async def slow(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        yield front


async def test_responses_deleted_or_left_on_the_way(slow):
    running = asyncio.ensure_future(
        slow.http.post("/v1/responses", json={"input": "hi", "request_id": "a/b-c", "max_output_tokens": 40})
    )
    await slow.until(lambda: len(slow.app.state.front.responses) == 1)
    id = next(iter(slow.service.open_requests)).id
    assert (await slow.http.delete(f"/v1/responses/{id}")).json()["deleted"]
    assert (await running).json()["status"] == "incomplete"
    assert len(slow.app.state.front.responses) == 0
    running = asyncio.ensure_future(slow.http.post("/v1/responses", json={"input": "hi", "request_id": "x-y"}))
    await slow.until(lambda: len(slow.app.state.front.responses) == 1)
    assert (await slow.http.delete("/v1/requests/y")).status_code == 404
    assert (await slow.http.delete("/v1/requests/x-y")).status_code == 200
    answer = (await running).json()
    assert (answer["status"], answer["output"][0]["status"]) == ("cancelled", "incomplete")
    assert answer["usage"]["output_tokens"] == len(answer["output"][0]["content"][0]["text"])


async def test_a_response_can_be_cancelled_before_its_first_token(slow):
    slow.client.hold = True
    running = asyncio.ensure_future(
        slow.http.post("/v1/responses", json={"input": "hi", "request_id": "early", "store": False})
    )
    await slow.until(lambda: slow.service.open_requests)
    id = next(iter(slow.service.open_requests)).id
    assert (await slow.http.post(f"/v1/responses/{id}/cancel")).json()["cancelled"]
    slow.client.hold = False
    assert (await running).json()["status"] == "cancelled"


async def test_only_the_instructions_end_with_their_turn(front):
    items = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    first = (
        await front.http.post("/v1/responses", json={"input": items, "instructions": "Shout.", "temperature": 0})
    ).json()
    second = (
        await front.http.post(
            "/v1/responses", json={"input": "and?", "previous_response_id": first["id"], "temperature": 0}
        )
    ).json()
    messages = [*items, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "and?"}]
    counted = (await front.http.post("/tokenize", json={"messages": messages})).json()["count"]
    assert second["usage"]["input_tokens"] == counted


async def test_a_reference_stands_for_a_stored_item(tokenizer, monkeypatch):
    """The AI SDK's OpenAI provider sends what it was answered as references from its second step on."""
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    async with front_of(LocalClient(saying(f"<think>hm</think>So {CALL}".encode())), tokenizer, config) as front:
        first = (await post(front, tools=TOOL)).json()
        result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "1"}
        asked = [{"role": "user", "content": "hi"}]
        turns = []
        render = front.service.tokenizer.render_chat
        noted = lambda messages, **options: turns.append(messages) or render(messages, **options)  # noqa: E731
        monkeypatch.setattr(front.service.tokenizer, "render_chat", noted)
        listed = (await front.http.get(f"{PATH}/{first['id']}/input_items")).json()["data"]
        references = [{"type": "item_reference", "id": item["id"]} for item in (*listed, *first["output"])]
        bare = [{"id": item["id"]} for item in (*listed, *first["output"])]
        for items in ([*asked, *first["output"]], references, bare, [*asked, *references[1:]]):
            answer = await post(front, input=[*items, result], tools=TOOL)
            assert answer.status_code == 200, answer.text
            counted = await front.http.post(f"{PATH}/input_tokens", json={"input": [*items, result]})
            assert counted.status_code == 200
        assert all(turn == turns[0] for turn in turns)


async def test_a_reference_to_what_is_not_stored_names_its_place(front):
    first = (await post(front, store=False)).json()
    for id in (first["output"][0]["id"], "rs_1", "msg_" + "0" * 32 + "_0", "", "x" * 1000):
        answer = await post(front, input=[{"role": "user", "content": "hi"}, {"type": "item_reference", "id": id}])
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (404 if id else 400, "input[1].id"), answer.text
    assert (await post(front, input=[{"type": "item_reference"}])).json()["error"]["param"] == "input[0].id"


def test_items_go_with_their_response():
    store, made = ResponseStore(max_responses=1).share_of("a"), response("resp_a")
    made.output = [OutputItem("msg_a", "message", content=[])]
    store.put(made, [])
    store.put(made, [])
    assert json.loads(store.find_item("msg_a") or b"")["type"] == "message"
    store.put(response("resp_b"), [])
    assert store.find_item("msg_a") is None
    assert not store._of_item
