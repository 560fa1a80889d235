"""Ending a request from outside: cancelled by its id, or by its deadline. What was said stays, with its usage."""

from __future__ import annotations

import asyncio

import pytest

from api.harness import LocalClient, endless, front_of
from tailrace.config import ServerConfig


@pytest.fixture
async def slow(tokenizer):
    """A model that never ends, a few hundred tokens per second."""
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        yield front


async def test_a_deadline_ends_with_what_there_is(slow):
    answer = (await slow.chat(deadline_s=0.15, max_tokens=200, n=2)).json()
    for choice in answer["choices"]:
        assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "deadline")
        assert 0 < len(choice["message"]["content"]) < 200
    said = sum(len(choice["message"]["content"]) for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == said
    await slow.until(slow.client.idle)
    assert slow.metric('tailrace_request_aborted_total{cause="deadline"}') == 1


async def test_the_servers_own_limit_comes_first(tokenizer):
    config = ServerConfig(max_request_s=0.1)
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer, config) as front:
        answer = (await front.chat(deadline_s=60.0, max_tokens=200)).json()
        assert answer["choices"][0]["stop_reason"] == "deadline"


async def test_no_deadline_no_effect(front):
    answer = (await front.chat(deadline_s=60.0)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("value", [0, -1, 1e9, "soon"])
async def test_a_deadline_out_of_range(front, value):
    answer = await front.chat(deadline_s=value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "deadline_s")


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
async def test_cancelled_by_its_id(slow, prefix):
    running = asyncio.ensure_future(slow.chat(request_id="mine", max_tokens=200))
    await slow.until(lambda: slow.service.open_requests and slow.client.engine.running)
    await asyncio.sleep(0.05)
    gone = await slow.http.delete(f"/v1/requests/{prefix}mine")
    assert (gone.status_code, gone.json()) == (
        200,
        {"id": "chatcmpl-mine", "object": "request.cancelled", "cancelled": True},
    )
    choice = (await running).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "cancelled")
    await slow.until(slow.client.idle)
    again = await slow.http.delete(f"/v1/requests/{prefix}mine")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")
