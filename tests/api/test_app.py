"""What is around the generating endpoints: models, health, metrics, request ids, and the engine's life."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.harness import CONTEXT, NAME, LocalClient, endless, front_of, saying
from tailrace.api.app import ROUTES
from tailrace.api.supervise import Supervisor
from tailrace.config import ServerConfig
from tailrace.errors import EngineDeadError, ModelLoadError, NotReadyError


async def test_models(front):
    [card] = (await front.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (NAME, "model", CONTEXT)
    assert (await front.http.get(f"/v1/models/{NAME}")).json() == card


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, *_ in ROUTES])
async def test_a_slash_at_the_end_changes_nothing(front, method, path):
    path = path.replace("{id:path}", "scripted")
    answers = [await front.http.request(method, path + end, json={}) for end in ("", "/", "//")]
    assert len({answer.status_code for answer in answers}) == 1, [answer.text for answer in answers]
    assert answers[0].status_code != 404 or "scripted" in path


async def test_a_request_with_a_slash_at_the_end_is_served(front):
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 9}
    assert (await front.http.post("/v1/chat/completions/", json=body)).json()["choices"][0]["message"]["content"]
    assert (await front.http.post("/v1/messages/", json=body)).json()["content"]
    assert (await front.http.get("/v1/models/")).json() == (await front.http.get("/v1/models")).json()
    assert (await front.http.get("/v1/models/scripted/")).json()["id"] == "scripted"
    assert (await front.http.post("/v1/messages/", json={})).json()["type"] == "error"


async def test_health_while_starting_ready_and_draining(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, wait=False) as front:
        health = await front.http.get("/health")
        early = await front.chat()
        if front.service.supervisor.state == "starting":
            assert (health.status_code, health.json()["status"]) == (503, "starting")
            assert early.json()["error"]["code"] == "not_ready"
        await front.until(lambda: front.service.supervisor.state == "ready")
        assert (await front.http.get("/health")).status_code == 200
        front.service.supervisor.drain()
        health = await front.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        answer = await front.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert answer.headers["retry-after"] == "1"


def test_nothing_is_accepted_before_the_engine_is_ready():
    supervisor = Supervisor(LocalClient(endless), "exit")
    with pytest.raises(NotReadyError, match="starting"):
        supervisor.check()


async def test_an_engine_that_does_not_start(tokenizer):
    client = LocalClient(endless)
    client.start_error = ModelLoadError("no such folder")
    async with front_of(client, tokenizer) as front:
        health = await front.http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "dead", "error": "no such folder"})
        assert front.service.supervisor.dead.is_set()
        with pytest.raises(EngineDeadError, match="no such folder"):
            front.service.supervisor.check()


async def test_any_exception_at_the_start_is_the_engines_death(tokenizer, caplog):
    client = LocalClient(endless)
    client.start_error = OSError(24, "Too many open files")
    async with front_of(client, tokenizer) as front:
        await front.until(front.service.supervisor.dead.is_set)
        assert (await front.http.get("/health")).json()["status"] == "dead"
    said = [line for line in caplog.messages if "is lost" in line]
    assert said == ["the engine is lost: it could not be started: OSError: [Errno 24] Too many open files"]


async def test_a_dead_engine_is_restarted_where_that_is_asked(tokenizer, monkeypatch):
    monkeypatch.setattr("tailrace.api.supervise.RESTART_AFTER_S", 0.05)
    client = LocalClient(saying(b"Hello"))
    async with front_of(client, tokenizer, ServerConfig(on_engine_death="restart")) as front:
        client.die()
        await front.until(lambda: front.service.supervisor.state == "starting")
        health = await front.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "starting")
        assert "signal 9" in health.json()["error"]
        await front.until(lambda: front.service.supervisor.state == "ready")
        assert client.starts == 2
        assert (await front.chat()).json()["choices"][0]["message"]["content"] == "Hello"
        client.start_error = ModelLoadError("gone")
        client.die()
        await front.until(front.service.supervisor.dead.is_set)
        assert (await front.http.get("/health")).json()["status"] == "dead"
        assert (await front.chat()).status_code == 503


async def test_the_version_and_a_ping(front):
    assert (await front.http.get("/version")).json() == {"version": version("tailrace")}
    for method in ("GET", "POST"):
        answer = await front.http.request(method, "/ping")
        assert (answer.status_code, answer.content) == (200, b"")
    front.client.die()
    await front.until(lambda: front.service.supervisor.state == "dead")
    assert (await front.http.get("/ping")).status_code == (await front.http.post("/ping")).status_code == 503


async def test_request_ids(front):
    given = await front.http.get("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    fresh = {(await front.http.get("/health")).headers["x-request-id"] for _ in range(3)}
    assert len(fresh) == 3
    for odd in ("x" * 200, "a b", "é".encode().decode("latin-1")):
        answer = await front.http.get("/health", headers={"x-request-id": odd.encode("latin-1")})
        assert answer.headers["x-request-id"] != odd
    headers = {"x-request-id": "mine-2"}
    body = {"prompt": "x="}
    answer = await front.http.post("/v1/completions", json=body, headers=headers)
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-mine-2", "mine-2")
    answer = await front.http.post("/v1/completions", json=body | {"request_id": "body"}, headers=headers)
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-body", "body")
    refused = await front.http.post("/v1/completions", json={}, headers=headers)
    assert refused.headers["x-request-id"] == "mine-2"


async def test_metrics_are_prometheus_text_and_count(front):
    await front.chat(content="x" * 40)
    await front.chat(content="x" * 40)
    await front.until(lambda: front.client.stats.running == 0)
    answer = await front.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    values = {s.name: s.value for f in families.values() for s in f.samples if not s.labels}
    assert values["tailrace_engine_ready"] == 1
    assert values["tailrace_num_requests_running"] == values["tailrace_num_requests_waiting"] == 0
    assert values["tailrace_kv_cache_usage_ratio"] == 0
    assert values["tailrace_generation_tokens_total"] == 12
    assert values["tailrace_prompt_tokens_total"] == front.client.engine.counters.prompt_tokens > 80
    assert values["tailrace_prompt_tokens_cached_total"] >= 48
    assert values["tailrace_num_preemptions_total"] == 0
    assert values["tailrace_e2e_request_latency_seconds_count"] == 2
    parts = {s.labels["part"] for s in families["tailrace_engine_step_seconds"].samples}
    assert {"plan", "forward", "sample", "commit"} <= parts
    buckets = families["tailrace_engine_step_duration_seconds"].samples
    counted = {s.labels["part"]: s.value for s in buckets if s.labels.get("le") == "+Inf"}
    assert counted.keys() == parts
    assert counted["forward"] == values["tailrace_engine_steps_total"]
    counted, seconds = (
        {s.labels["kind"]: s.value for s in families[f"tailrace_decode_step{name}"].samples}
        for name in ("s", "_seconds")
    )
    assert counted["plain"] > 0  # nobody guesses here
    assert counted.keys() == seconds.keys() == {"plain"}
    assert seconds["plain"] > 0


async def test_a_blocked_event_loop_shows_in_the_metrics(front):
    def late() -> float:
        whole = front.metric("tailrace_event_loop_lag_seconds_count")
        return whole - front.metric('tailrace_event_loop_lag_seconds_bucket{le="0.1"}')

    await front.until(lambda: front.metric("tailrace_event_loop_lag_seconds_count") > 0)
    before = late()
    time.sleep(0.25)  # what a request must not do
    await front.until(lambda: late() > before)


async def test_metrics_show_load(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.001), tokenizer) as front:
        asking = asyncio.create_task(front.chat(n=2, ignore_eos=True, stop="never"))
        await front.until(lambda: front.metric("tailrace_num_requests_running") == 2)
        assert 0 < front.metric("tailrace_kv_cache_usage_ratio") < 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await front.until(lambda: front.metric("tailrace_num_requests_running") == 0)
