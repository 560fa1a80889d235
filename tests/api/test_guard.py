"""API keys, other sites' pages, and the size of bodies."""

from __future__ import annotations

import pytest

from api.harness import LocalClient, front_of, saying
from tailrace.config import ServerConfig


@pytest.fixture
async def guarded(tokenizer):
    config = ServerConfig(api_keys="one, two", cors_origins="https://a.example", max_body_mib=1)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        yield front


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer three", "Basic one", "Bearer one,two", "one"])
async def test_without_a_key_there_is_nothing(guarded, header):
    headers = {} if header is None else {"authorization": header}
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/tokenize"),
        ("GET", "/nowhere"),
    ):
        answer = await guarded.http.request(method, path, headers=headers, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("key", ["one", "two"])
async def test_each_key_opens(guarded, key):
    answer = await guarded.http.get("/v1/models", headers={"authorization": f"bearer {key}"})
    assert answer.status_code == 200


async def test_probes_need_no_key(guarded):
    assert (await guarded.http.get("/health")).status_code == 200
    assert (await guarded.http.get("/metrics")).status_code == 200


async def test_pages_of_listed_sites_may_call(guarded):
    ask = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    assert (await guarded.http.options("/v1/chat/completions", headers=ask)).status_code == 200
    ask["origin"] = "https://b.example"
    assert (await guarded.http.options("/v1/chat/completions", headers=ask)).status_code == 400
    answer = await guarded.http.get("/health", headers={"origin": "https://a.example"})
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


async def test_without_keys_and_sites_nothing_is_in_the_way(front):
    answer = await front.http.get("/v1/models", headers={"origin": "https://a.example"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_a_body_too_large(guarded):
    answer = await guarded.http.post(
        "/v1/completions", content=b" " * ((1 << 20) + 1), headers={"authorization": "Bearer one"}
    )
    assert answer.status_code == 413


async def test_too_many_choices_are_refused(front):
    answer = await front.complete(["x="] * 100, n=64)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
