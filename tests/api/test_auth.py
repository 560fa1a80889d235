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


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "two"}, 200),
        ({"x-api-key": "two", "authorization": "Bearer three"}, 200),
        ({"x-api-key": "three", "authorization": "Bearer one"}, 200),
        ({"x-api-key": "one", "authorization": "Bearer one"}, 200),
        ({"x-api-key": "two", "authorization": "Bearer one"}, 401),
        ({"x-api-key": "three"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "one,two"}, 401),
        ({"x-api-key": "Bearer one"}, 401),
    ],
)
async def test_anthropics_header_opens_too(guarded, headers, status):
    assert (await guarded.http.get("/v1/models", headers=headers)).status_code == status


async def test_probes_need_no_key(guarded):
    for path in ("/health", "/ping", "/version", "/metrics"):
        assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.post("/ping")).status_code == 200


async def test_pages_of_listed_sites_may_call(guarded):
    ask = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    assert (await guarded.http.options("/v1/chat/completions", headers=ask)).status_code == 200
    ask["origin"] = "https://b.example"
    assert (await guarded.http.options("/v1/chat/completions", headers=ask)).status_code == 403
    answer = await guarded.http.get("/health", headers={"origin": "https://a.example"})
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


OTHERS = ("https://a.example", "http://localhost.a.example", "null", "http://localhost:1", "chrome-extension://a", "")


async def test_pages_of_other_sites_may_not_call_a_server_on_loopback(front):
    for origin in OTHERS:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("OPTIONS", "/v1/completions"),
            ("GET", "/health"),
        ):
            answer = await front.http.request(method, path, headers={"origin": origin})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), origin
            assert "--cors-origins" in answer.json()["error"]["message"]
    for origin in ("http://localhost", "https://localhost"):  # a page of our own
        assert (await front.http.get("/v1/models", headers={"origin": origin})).status_code == 200


async def test_the_files_of_the_page_load_behind_a_proxy_that_drops_the_port_of_host(front):
    """The page shows the refusal of its requests. Its files are public, and no file is a request."""
    origin = {"origin": "http://localhost:8080"}
    answer = await front.http.get("/page/js/app.js", headers=origin)
    assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)
    refused = await front.http.post("/v1/completions", json={}, headers=origin)
    assert refused.status_code == 403
    assert "proxy" in refused.json()["error"]["message"]
    assert (await front.http.post("/page/js/app.js", headers=origin)).status_code == 403


@pytest.mark.parametrize(
    ("sites", "origin", "status"),
    [
        ("*", "https://a.example", 200),
        ("null", "null", 200),
        ("https://a.example", "null", 403),
        ("*", "null", 200),
    ],
)
async def test_which_pages_may(tokenizer, sites, origin, status):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(cors_origins=sites)) as front:
        answer = await front.http.get("/v1/models", headers={"origin": origin})
        assert answer.status_code == status
        preflight = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        }
        assert (await front.http.options("/v1/completions", headers=preflight)).status_code == status


MINE = ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.9.9.9:80", "[::1]:8000", "a.localhost", "localhost.:8000")
THEIRS = ("a.example", "localhost.a.example:8000", "10.0.0.1", "0.0.0.0", "127.0.0.1.a.example", "[::2]", "x:y:z")


@pytest.mark.parametrize(
    ("bound", "allowed", "taken"),
    [
        ("127.0.0.1", "", MINE),
        ("::1", "", MINE),
        ("localhost", "", MINE),
        ("127.0.0.1", "*", MINE + THEIRS),
        ("0.0.0.0", "", MINE + THEIRS),
        ("10.0.0.1", "", MINE + THEIRS),
        ("127.0.0.1", "b.example, A.example", (*MINE, "a.example", "b.example:8000")),
        ("0.0.0.0", "a.example", (*MINE, "a.example", "0.0.0.0")),
    ],
)
async def test_names_that_the_server_is_called_by(tokenizer, bound, allowed, taken):
    """A name that somebody else's DNS leads here is none of ours."""
    config = ServerConfig(host=bound, allowed_hosts=allowed)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        for host in {*MINE, *THEIRS, *taken}:
            answer = await front.http.get("/v1/models", headers={"host": host})
            assert answer.status_code == (200 if host in taken else 403), host
            if host not in taken:
                assert "--allowed-hosts" in answer.json()["error"]["message"]


async def test_where_all_may_call_pages_of_other_sites_may_not_read(tokenizer):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(host="0.0.0.0")) as front:
        answer = await front.http.get("/v1/models", headers={"origin": "https://a.example"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


async def test_a_body_too_large(guarded):
    answer = await guarded.http.post(
        "/v1/completions",
        content=b" " * ((1 << 20) + 1),
        headers={"authorization": "Bearer one", "content-type": "application/json"},
    )
    assert answer.status_code == 413


async def test_too_many_choices_are_refused(front):
    answer = await front.complete(["x="] * 100, n=64)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
