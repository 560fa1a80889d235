"""Thoughts that clients keep: encrypted, for one user, and read again."""

from __future__ import annotations

import pytest
from openai.types.responses import Response, ResponseStreamEvent

from api.talks import CALL, TOOL, talk_to
from api.test_client_types import check, events_of
from tailrace.api.sealed import Sealer
from tailrace.errors import ConfigError

ASKED = {"include": ["reasoning.encrypted_content"], "store": False}
SECRET = "a secret of some length"


def test_only_the_same_key_kind_and_user_open_it():
    sealer = Sealer(SECRET)
    sealed = sealer.seal("reasoning", "one", "hé")
    assert "h" not in sealed.removeprefix("tailrace1.") or sealer.seal("reasoning", "one", "hé") != sealed
    assert sealer.open("reasoning", "one", sealed) == Sealer(SECRET).open("reasoning", "one", sealed) == "hé"
    assert sealer.open("compaction", "one", sealed) is sealer.open("reasoning", "two", sealed) is None
    assert Sealer("").open("reasoning", "one", sealed) is Sealer(SECRET + "!").open("reasoning", "one", sealed) is None


def test_any_change_is_seen():
    sealer = Sealer(SECRET)
    sealed = sealer.seal("reasoning", "one", "a thought")
    for i in range(len(sealed)):
        other = "A" if sealed[i] != "A" else "B"
        assert sealer.open("reasoning", "one", sealed[:i] + other + sealed[i + 1 :]) is None
    longer = (sealed + "AAAA", sealed + "====", sealed + "!")
    for wrong in ("", "x", "tailrace1.", "gAAAAABo", sealed[:-4], sealed[:30] + "é", *longer):
        assert sealer.open("reasoning", "one", wrong) is None


def test_a_short_secret_is_refused():
    with pytest.raises(ConfigError, match=r"encryption_key.*at least 16"):
        Sealer("short")


async def test_a_thought_is_in_the_next_prompt(tmp_path):
    async with talk_to(tmp_path, f"<think>deep</think>So {CALL}") as talk:
        made = await talk.post(input="hi", tools=[TOOL], **ASKED)
        thought = made["output"][0]
        assert thought["content"][0]["text"] == "deep"
        # as Codex sends it: without the text
        sent = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
        output = {"type": "function_call_output", "call_id": made["output"][2]["call_id"], "output": "3"}
        question = {"role": "user", "content": "hi"}
        await talk.post(input=[question, sent, *made["output"][1:], output], tools=[TOOL], **ASKED)
        assert "assistant\n<think>deep</think>So \n<tool_call>" in talk.prompts[1]
        plain = await talk.post(input="hi", store=False)
        assert "encrypted_content" not in plain["output"][0]


async def test_the_clients_types(tmp_path):
    async with talk_to(tmp_path, "<think>deep</think>So") as talk:
        check(Response, (await talk.http.post("/v1/responses", json={"input": "hi"} | ASKED)).content)
        events = await events_of(talk, "/v1/responses", {"input": "hi"} | ASKED)
        for event in events:
            check(ResponseStreamEvent, event)
        assert sum("encrypted_content" in event for event in events) == 2  # the item's end, and the response's


async def test_foreign_and_changed_content_is_refused(tmp_path):
    async with talk_to(tmp_path, "<think>deep</think>So", api_keys="one, two") as talk:
        sealed = (await talk.post(input="hi", key="one", **ASKED))["output"][0]["encrypted_content"]
        question = {"role": "user", "content": "hi"}
        for text, key, kind in (
            (sealed, "two", "reasoning"),
            (sealed[:-6], "one", "reasoning"),
            ("gAAAAABo", "one", "reasoning"),
            (sealed, "one", "compaction"),
            (sealed, "one", "message"),
        ):
            items = [question, {"type": kind, "encrypted_content": text}]
            error = (await talk.post(input=items, key=key, status=400))["error"]
            assert error["param"] == "input[1].encrypted_content"
        await talk.post(input=[question, {"type": "reasoning", "encrypted_content": sealed}], key="one")
        error = (await talk.post(input=[{"type": "compaction"}], key="one", status=400))["error"]
        assert error["param"] == "input[0].encrypted_content"


async def test_a_restart_with_the_same_key_reads_it(tmp_path):
    async with talk_to(tmp_path / "a", "<think>deep</think>So", encryption_key=SECRET) as talk:
        sealed = (await talk.post(input="hi", **ASKED))["output"][0]["encrypted_content"]
    items = [{"role": "user", "content": "hi"}, {"type": "reasoning", "encrypted_content": sealed}]
    async with talk_to(tmp_path / "b", encryption_key=SECRET) as talk:
        await talk.post(input=items)
        assert "<think>deep</think>" in talk.prompts[0]
    async with talk_to(tmp_path / "c") as talk:
        await talk.post(input=items, status=400)


async def test_a_reference_needs_no_key(tmp_path):
    async with talk_to(tmp_path, "<think>deep</think>So") as talk:
        made = await talk.post(input="hi", include=ASKED["include"])
        front = talk.front.app.state.front
        front.sealer = Sealer("")
        question = {"role": "user", "content": "hi"}
        await talk.post(input=[question, {"type": "item_reference", "id": made["output"][0]["id"]}])
        assert "<think>deep</think>" in talk.prompts[1]


async def test_calls_beyond_the_limit_are_not_made(tmp_path):
    async with talk_to(tmp_path, f"So {CALL}{CALL}{CALL} end") as talk:
        for most, calls in ((1, 1), (2, 2), (3, 3), (None, 3)):
            made = await talk.post(input="hi", tools=[TOOL], max_tool_calls=most)
            kinds = [item["type"] for item in made["output"]]
            assert kinds.count("function_call") == calls
            assert (made["status"], made["max_tool_calls"]) == ("completed", most)
            assert all(item["status"] == "completed" for item in made["output"])
            assert kinds[-1] == ("message" if calls == 3 else "function_call")
