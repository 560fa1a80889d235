"""Responses that run without their client: polled, streamed, cancelled, bounded, ended by a shutdown."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent

from api.harness import endless
from api.talks import talk_to
from api.test_client_types import check
from tailrace.api import background


async def until(talk, id: str, *states: str) -> dict:
    """The response, once it has one of the states."""
    async with asyncio.timeout(300):
        while True:
            answer = await talk.http.get(f"/v1/responses/{id}")
            if answer.json()["status"] != "failed":  # the codes of errors are the server's own
                check(Response, answer.content)
            if answer.json()["status"] in states:
                return answer.json()
            await asyncio.sleep(0.005)


def events_of(text: str) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


@pytest.fixture(params=["memory", "file"])
def settings(request, tmp_path):
    return {"stored_responses_file": str(tmp_path / "responses")} if request.param == "file" else {}


async def test_it_is_polled(tmp_path, settings):
    async with talk_to(tmp_path / "m", **settings) as talk:
        talk.front.client.hold = True
        made = await talk.post(input="hi", background=True)
        assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
        assert (await talk.get(f"/v1/responses/{made['id']}"))["status"] == "queued"
        talk.front.client.hold = False
        done = await until(talk, made["id"], "completed")
        assert done["output"][0]["content"][0]["text"] == "Hello"
        assert done["usage"]["output_tokens"] == 6
        await talk.post(input="more", previous_response_id=made["id"])
        assert "Hello" in talk.prompts[1]
        assert len(talk.front.app.state.front.background) == 0


async def test_it_is_streamed_and_resumed(tmp_path, settings):
    async with talk_to(tmp_path / "m", tick_s=0.01, **settings) as talk:
        body = {"input": "hi", "background": True, "stream": True}
        async with talk.http.stream("POST", "/v1/responses", json=body) as answer:
            lines = answer.aiter_lines()
            first = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")][:4]
        assert [event["type"] for event in first[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert [event["response"]["status"] for event in first[:3]] == ["queued", "queued", "in_progress"]
        id = first[0]["response"]["id"]
        await until(talk, id, "completed")
        text = (await talk.http.get(f"/v1/responses/{id}?stream=true&starting_after=1")).text
        events = events_of(text)
        for event in events:
            check(ResponseStreamEvent, json.dumps(event))
        assert [event["sequence_number"] for event in events] == [*range(2, 2 + len(events))]
        assert events[-1]["type"] == "response.completed"


async def test_a_client_that_leaves_does_not_end_it(tmp_path):
    async with talk_to(tmp_path, endless, tick_s=0.002, context=400) as talk:
        body = {"input": "hi", "background": True, "stream": True}
        request = asyncio.create_task(talk.http.post("/v1/responses", json=body))
        await talk.front.until(lambda: bool(talk.prompts))
        await asyncio.sleep(0.02)
        request.cancel()
        [(_, id)] = talk.front.app.state.front.background._tasks
        done = await until(talk, id, "incomplete")
        assert done["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_it_is_cancelled(tmp_path, settings):
    async with talk_to(tmp_path / "m", endless, tick_s=0.002, context=4096, **settings) as talk:
        made = await talk.post(input="hi", background=True)
        cancelled = await talk.http.post(f"/v1/responses/{made['id']}/cancel")
        check(Response, cancelled.content)
        assert cancelled.json()["status"] == "cancelled"
        await until(talk, made["id"], "cancelled")
        await talk.front.until(talk.front.client.idle)
        assert (await talk.http.post(f"/v1/responses/{made['id']}/cancel")).json()["status"] == "cancelled"


async def test_a_deleted_one_ends(tmp_path):
    async with talk_to(tmp_path, endless, tick_s=0.002, context=100_000) as talk:
        made = await talk.post(input="hi", background=True)
        await until(talk, made["id"], "in_progress")
        await talk.get(f"/v1/responses/{made['id']}", method="DELETE")
        await talk.front.until(talk.front.client.idle)
        await talk.front.until(lambda: not talk.front.app.state.front.background)
        await talk.get(f"/v1/responses/{made['id']}", 404)


async def test_it_counts_as_a_running_request_of_its_user(tmp_path):
    async with talk_to(tmp_path, endless, tick_s=0.002, context=100_000, max_requests_per_user=2) as talk:
        made = [await talk.post(input="hi", background=True) for _ in range(2)]
        await talk.post(input="hi", status=429)
        for path in ("", "/input_items"):
            await talk.get(f"/v1/responses/{made[0]['id']}{path}")
        await talk.post(f"/v1/responses/{made[0]['id']}/cancel")
        await until(talk, made[0]["id"], "cancelled")
        await talk.front.until(lambda: len(talk.front.app.state.front.background) == 1)
        await talk.post(input="hi", background=True)
        await talk.post(input="hi", background=True, status=429)


async def test_the_number_of_a_user_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "MAX_RUNNING", 2)
    async with talk_to(tmp_path, endless, tick_s=0.002, context=100_000, api_keys="one, two") as talk:
        for _ in range(2):
            await talk.post(input="hi", background=True, key="one")
        assert "background" in (await talk.post(input="hi", background=True, key="one", status=429))["error"]["message"]
        await talk.post(input="hi", background=True, key="two")


async def test_the_number_is_bounded_for_those_that_come_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "MAX_RUNNING", 2)
    async with talk_to(tmp_path, endless, tick_s=0.002, context=100_000) as talk:
        asked = [talk.http.post("/v1/responses", json={"input": "hi", "background": True}) for _ in range(6)]
        codes = [answer.status_code for answer in await asyncio.gather(*asked)]
        assert sorted(codes) == [200, 200, 429, 429, 429, 429]
        assert len(talk.front.app.state.front.background) == 2
        assert len(talk.front.service.open_requests) == 2


async def test_a_shutdown_ends_it_with_a_status(tmp_path):
    file = str(tmp_path / "responses")
    async with talk_to(tmp_path / "a", endless, tick_s=0.002, context=100_000, stored_responses_file=file) as talk:
        made = await talk.post(input="hi", background=True)
        await until(talk, made["id"], "in_progress")
    async with talk_to(tmp_path / "b", stored_responses_file=file) as talk:
        done = await talk.get(f"/v1/responses/{made['id']}")
        assert done["status"] == "failed"
        assert "shutting down" in done["error"]["message"]
        assert done["output"][0]["content"][0]["text"]


async def test_the_engines_refusal_is_its_end(tmp_path):
    async with talk_to(tmp_path) as talk:
        talk.front.client.hold = True
        made = await talk.post(input="hi", background=True)
        talk.front.client.die()
        done = await until(talk, made["id"], "failed")
        error = done["error"]
        assert "died" in error["message"]
        # AI SDK 7 requires the type and the code
        assert (error["type"], error["code"], error["param"]) == ("server_error", "engine_dead", None)


async def test_what_is_refused(tmp_path):
    async with talk_to(tmp_path) as talk:
        error = (await talk.post(input="hi", background=True, store=False, status=400))["error"]
        assert error["param"] == "background"
        await talk.post(input="hi", background=True, temperature=-1, status=400)
        assert not talk.front.app.state.front.background
