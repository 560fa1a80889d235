"""`return_progress`: chunks that show how much of a prompt is computed, in llama.cpp's shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.harness import LocalClient, endless, events, front_of, saying
from tailrace.api import prompt_progress
from tailrace.errors import OverloadedError
from tailrace.wire.messages import Owner

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a" * 150}]},
    "/v1/completions": {"prompt": "a" * 199 + "="},
}
NAMES = ["total", "cache", "processed", "time_ms"]


class SmallSteps(LocalClient):
    """An engine whose steps compute 32 tokens at most."""

    async def start(self):
        info = await super().start()
        self.engine.steps.chunks.most = 32
        return info


def split(text: str) -> tuple[list[dict], list[Any]]:
    """The reports of a stream, and its other chunks."""
    found = events(text)
    reports = [chunk for chunk in found if "prompt_progress" in chunk]
    assert found[: len(reports)] == reports
    assert all(chunk["choices"] == [] for chunk in reports)
    return [chunk["prompt_progress"] for chunk in reports], found[len(reports) :]


def join(chunks: list[Any]) -> str:
    """The text of an answer."""
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("path", PATHS)
async def test_each_step_of_a_long_prompt_is_seen(tokenizer, path):
    async with front_of(SmallSteps(saying(b"Hello"), tick_s=0.005), tokenizer) as front:
        body = PATHS[path] | {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        plain = events((await front.http.post(path, json=body)).text)
        fresh = body | {"cache_salt": "other", "return_progress": True}
        reports, rest = split((await front.http.post(path, json=fresh)).text)
        total = rest[-2]["usage"]["prompt_tokens"]
        assert [list(report) for report in reports] == [NAMES] * len(reports)
        assert {(report["total"], report["cache"]) for report in reports} == {(total, 0)}
        steps = [report["processed"] for report in reports]
        assert steps == sorted(steps)
        assert steps[-1] == total
        assert len(steps) >= total // 32
        times = [report["time_ms"] for report in reports]
        assert times == sorted(times)
        assert join(rest) == join(plain)

        reports, _ = split((await front.http.post(path, json=fresh)).text)
        assert reports[-1]["processed"] == total
        assert {report["cache"] for report in reports} == {total // 16 * 16 - (16 if total % 16 == 0 else 0)}


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_that_waits_shows_that_it_is_there(tokenizer, path, monkeypatch):
    monkeypatch.setattr(prompt_progress, "PERIOD_S", 0.01)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        front.client.hold = True
        body = PATHS[path] | {"stream": True, "return_progress": True}
        asked = asyncio.ensure_future(front.http.post(path, json=body))
        await front.until(lambda: bool(front.client.engine.waiting))
        await asyncio.sleep(0.1)
        front.client.hold = False
        reports, rest = split((await asked).text)
        assert len(reports) >= 3
        assert {(report["cache"], report["processed"]) for report in reports[:2]} == {(0, 0)}
        assert reports[-1]["processed"] == reports[-1]["total"]
        assert rest[-1] == "[DONE]"


@pytest.mark.parametrize("path", PATHS)
async def test_all_prompts_are_counted_together(tokenizer, path):
    async with front_of(SmallSteps(saying(b"Hello"), tick_s=0.005), tokenizer) as front:
        fields = {"n": 2} | ({"prompt": ["a" * 80 + "=", "b" * 80 + "="]} if path == "/v1/completions" else {})
        body = PATHS[path] | {"stream": True, "return_progress": True} | fields
        reports, rest = split((await front.http.post(path, json=body)).text)
        assert reports
        assert all(report["processed"] <= report["total"] for report in reports)
        ends = [choice["index"] for chunk in rest[:-1] for choice in chunk["choices"] if choice["finish_reason"]]
        assert sorted(ends) == [*range(4 if path == "/v1/completions" else 2)]


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_field_nothing_changes(tokenizer, path):
    async with front_of(SmallSteps(saying(b"Hello")), tokenizer) as front:
        for fields in ({}, {"return_progress": False}, {"return_progress": None}):
            text = (await front.http.post(path, json=PATHS[path] | {"stream": True} | fields)).text
            assert "prompt_progress" not in text


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_refused(tokenizer, path):
    async with front_of(LocalClient(endless), tokenizer) as front:
        fields = {"stream": True, "use_beam_search": True, "n": 2}
        answer = await front.http.post(path, json=PATHS[path] | {"return_progress": True, "max_tokens": 3} | fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_progress")
        await front.until(front.client.idle)


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_has_no_progress(tokenizer, path):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer) as front:
        answer = await front.http.post(path, json=PATHS[path] | {"return_progress": True})
        assert (answer.status_code, "prompt_progress" in answer.text) == (200, False)


async def test_a_refusal_of_the_engine_is_still_an_http_error(tokenizer, monkeypatch):
    def refuse(owner: Owner) -> None:
        raise OverloadedError("memory is short")

    async with front_of(LocalClient(endless), tokenizer) as front:
        monkeypatch.setattr(front.client.engine.memory_limit, "check_place", refuse)
        answer = await front.chat(stream=True, return_progress=True)
        assert answer.status_code == 429


async def test_a_client_that_leaves_while_the_prompt_is_computed(tokenizer):
    async with front_of(SmallSteps(saying(b"Hello"), tick_s=0.01), tokenizer) as front:
        body = PATHS["/v1/completions"] | {"stream": True, "return_progress": True}
        asked = asyncio.ensure_future(front.http.post("/v1/completions", json=body))
        await front.until(lambda: bool(front.client.engine.running))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await front.until(front.client.idle)
        assert not front.service.open_requests
