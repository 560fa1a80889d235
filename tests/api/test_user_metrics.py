"""Metrics by user: what is counted, the labels, and the bound on their number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.harness import LocalClient, front_of, saying
from tailrace.api.metrics import Exposition
from tailrace.api.request_record import RequestOrigin, RequestRecord
from tailrace.api.schema.common import PromptTokensDetails, Usage
from tailrace.api.user import make_user_id
from tailrace.api.user_metrics import UserMetrics
from tailrace.api.user_table import TableLayout, UserTable, make_shared_file
from tailrace.config import ServerConfig, UserConfig
from tailrace.params import SamplingParams

PREFIX = "tailrace_user_"
USERS = {"alice": UserConfig(api_key="one"), "bob": UserConfig(api_key="two", requests_per_minute=1)}


def read_samples(text: bytes) -> dict[tuple[str, str, str], float]:
    """(name, user, limit) → value."""
    return {
        (
            sample.name.removeprefix("tailrace_user_"),
            sample.labels["user"],
            sample.labels.get("limit", ""),
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name.startswith("tailrace_user_")
    }


def own_samples(metrics: UserMetrics) -> dict[tuple[str, str, str], float]:
    exposition = Exposition({})
    exposition.register(metrics)
    return read_samples(exposition.render_metrics())


def record_of(user: str) -> RequestRecord:
    return RequestRecord("m", RequestOrigin(user=user), "id", SamplingParams(), lambda record, usage: None)


USAGE = Usage(3, 4, 7, PromptTokensDetails())


async def test_what_is_counted(tokenizer):
    config = ServerConfig(users=USERS, api_keys="three", metrics_by_user=5)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:

        async def post(key: str, **fields: Any) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = await front.http.post("/v1/completions", json={"prompt": "x="} | fields, headers=headers)
            return answer.status_code

        def samples() -> dict[tuple[str, str, str], float]:
            return read_samples(front.app.state.front.metrics.render_metrics())

        assert [await post("one"), await post("one", n=2)] == [200, 200]
        assert [await post("two"), await post("two"), await post("two"), await post("wrong")] == [200, 429, 429, 401]
        assert await post("three", max_tokens=-5) == 400
        front.client.hold = True
        waiting = asyncio.ensure_future(post("three"))
        await front.until(lambda: bool(front.service.open_requests))
        third = make_user_id("key", "three")[:16]
        found = samples()
        assert found["requests_waiting", third, ""] == 1
        assert ("requests_total", third, "") not in found
        front.client.hold = False
        await waiting
        found = samples()
        counted = {
            user: [found[name, user, ""] for name in ("requests_total", "prompt_tokens_total", "requests_waiting")]
            for user in ("alice", "bob", third)
        }
        assert counted == {"alice": [2, 4, 0], "bob": [1, 2, 0], third: [1, 2, 0]}
        one = found["generation_tokens_total", "bob", ""]
        assert found["generation_tokens_total", "alice", ""] == 3 * one > 0
        assert {key: value for key, value in found.items() if key[0] == "requests_refused_total"} == {
            ("requests_refused_total", "bob", "requests"): 2
        }
        text = front.app.state.front.metrics.render_metrics().decode()
        assert not any(key in text for key in ('"one"', '"two"', '"three"', "127.0.0.1"))


async def test_a_request_with_a_token_runs(tokenizer):
    config = ServerConfig(metrics_by_user=1)
    async with front_of(LocalClient(lambda ids: 97), tokenizer, config) as front:
        running = asyncio.ensure_future(front.complete(max_tokens=200))
        await front.until(lambda: any(request.usage.completion_tokens for request in front.service.open_requests))
        front.client.hold = True
        found = read_samples(front.app.state.front.metrics.render_metrics())
        label = make_user_id("address", "127.0.0.1")[:16]
        assert (found["requests_running", label, ""], found["requests_waiting", label, ""]) == (1, 0)
        front.client.hold = False
        await running
        found = read_samples(front.app.state.front.metrics.render_metrics())
        assert found["requests_running", label, ""] == 0


async def test_none_without_the_setting(tokenizer):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(requests_per_minute=9)) as front:
        await front.complete()
        assert b"tailrace_user" not in front.app.state.front.metrics.render_metrics()


@pytest.mark.parametrize("most", [1, 7])
def test_thousands_of_addresses_have_few_labels(most: int):
    """The first users have labels of their own, and keep them. All requests are counted."""
    metrics = UserMetrics(ServerConfig(metrics_by_user=most), UserTable(TableLayout(1, most)))
    users = [make_user_id("address", str(number)) for number in range(3_000)]
    for _ in range(2):
        for user in users:
            metrics.begin_request(record := record_of(user))
            metrics.end_request(record, USAGE)
            metrics.count_refusal(user, "tokens")
    for user in users:
        metrics.begin_request(record_of(user))
    found = own_samples(metrics)
    labels = {user for _, user, _ in found}
    assert labels == {"other", *(user[:16] for user in users[:most])}
    assert len(found) == 7 * (most + 1)
    expected = {"requests_total": 2, "prompt_tokens_total": 6, "requests_refused_total": 2, "requests_waiting": 1}
    for name, each in expected.items():
        own = {user: value for (known, user, _), value in found.items() if known == name}
        assert own.pop("other") == each * (3_000 - most)
        assert set(own.values()) == {each}


def test_front_ends_have_the_same_labels():
    layout = TableLayout(3, 4)
    file = make_shared_file(layout)
    config = ServerConfig(front_ends=3, metrics_by_user=4)
    fronts = [UserMetrics(config, UserTable(layout, file, place)) for place in range(3)]
    users = [make_user_id("address", str(number)) for number in range(300)]
    for number, user in enumerate(users):
        fronts[number % 3].count_refusal(user, "tokens")
    for user in reversed(users):
        for front in fronts:
            front.end_request(record_of(user), USAGE)
    expositions = [Exposition({}) for _ in fronts]
    for exposition, front in zip(expositions, fronts, strict=True):
        exposition.register(front)
    found = read_samples(expositions[0].render_metrics([exposition.own() for exposition in expositions]))
    labels = {user for _, user, _ in found}
    assert labels == {"other", *(user[:16] for user in users[:4])}
    assert {found["requests_total", user, ""] for user in labels - {"other"}} == {3}
    assert found["requests_total", "other", ""] == 3 * 296
