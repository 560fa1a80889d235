"""Limits per user over HTTP: headers, refusals, and what each kind of request costs. Time is the tests' own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from api.harness import CONTEXT, NAME, Front, LocalClient, endless, events, front_of, saying, served
from tailrace.api.app import PAGE, ROUTES, create_app
from tailrace.api.openapi import GENERATING_PATHS, OPERATIONS
from tailrace.api.prepare import UNNAMED
from tailrace.api.route_costs import COSTS, FREE, Cost, find_cost
from tailrace.api.routes import compact
from tailrace.api.user import make_user_id
from tailrace.api.user_limits import UserLimits, format_duration
from tailrace.config import ServerConfig, UserConfig

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
OUTPUT = {"request_id": "a", "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [*b"Hello"]}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {"max_tokens": 9},
    "/v1/completions": {"prompt": "x=", "max_tokens": 9},
    "/generate": {"text": "x=", "sampling_params": {"max_new_tokens": 9}},
    "/v1/responses": {"input": "hi", "max_output_tokens": 9},
    "/v1/responses/compact": {"model": "scripted", "input": "hi"},
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/inference/v1/generate": {"token_ids": [*b"x="], "sampling_params": {"max_tokens": 9}},
    "/v1/explain": {"prompt": "x=", "seed": 1, "output_token_ids": [*b"Hello"]},
}
COUNTED: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/chat/completions/render": CHAT | {"max_tokens": 9},
    "/v1/completions/render": {"prompt": "x="},
    "/v1/chat/completions/derender": {"generate_response": OUTPUT, "chat_request": CHAT},
    "/v1/completions/derender": {"generate_responses": [OUTPUT], "completion_request": {"prompt": "x="}},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [65]},
}
USER = make_user_id("address", "127.0.0.1")


@pytest.fixture(autouse=True)
def short_order(monkeypatch):
    """The order to compact a conversation fits the small context."""
    monkeypatch.setattr(compact, "ORDER", "Sum up.")


class Clock:
    """Microseconds that stand still."""

    now_us = 10**12

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


@asynccontextmanager
async def limited(tokenizer, script: Any = None, **config: Any) -> AsyncIterator[tuple[Front, Clock]]:
    """A server with limits, which says Hello; and its clock."""
    client = LocalClient(script or saying(b"Hello"))
    async with front_of(client, tokenizer, ServerConfig(**config)) as front:
        clock = limits_of(front).clock = Clock()
        yield front, clock
        if not client.hold:
            await front.until(client.idle)


def limits_of(front: Front) -> UserLimits:
    limits = front.app.state.front.limits
    assert limits is not None
    return limits


def used(front: Front, user: str = USER) -> tuple[int, int]:
    """Requests and tokens."""
    standing = limits_of(front).read_standing(user)
    return (
        standing.requests.limit - standing.requests.remaining,
        standing.tokens.limit - standing.tokens.remaining,
    )


async def post(front: Front, path: str, user: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if user is None else {"authorization": f"Bearer {user}"}
    return await front.http.post(path, json=BODIES[path] | fields, headers=headers)


def rate_headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if "ratelimit" in name}


def test_every_route_counts_or_is_free_for_a_reason():
    routes = {(method, path) for method, path, _ in (*ROUTES, *PAGE)}
    assert routes == COSTS.keys() | FREE.keys()
    assert not COSTS.keys() & FREE.keys()
    assert set(BODIES) == GENERATING_PATHS
    assert set(COUNTED) < {path for (_, path), cost in COSTS.items() if cost is Cost.REQUEST}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in (*ROUTES, *PAGE)])
def test_the_cost_of_a_path_is_that_of_its_route(method: str, path: str):
    """Ids may have slashes."""
    for id in ("resp_1", "resp/1", "a/input_items/b"):
        expected = COSTS.get((method, path), Cost.FREE)
        assert find_cost(method, re.sub(r"{\w+:path}", id, path)) is expected
    documented = OPERATIONS.get((method, path.replace(":path", "")))
    if documented is not None:
        assert (429 in documented.statuses) is ((method, path) in COSTS)


@pytest.mark.parametrize(
    ("method", "path", "counts"),
    [
        ("GET", "/v1/responses/resp_1", 1),
        ("HEAD", "/v1/responses/resp_1/", 1),
        ("GET", "/v1/responses/resp_1/input_items", 1),
        ("DELETE", "/v1/responses/resp_1", 1),
        ("POST", "/v1/load_lora_adapter", 1),
        ("POST", "/v1/responses/resp_1/cancel", 0),
        ("DELETE", "/v1/requests/resp_1", 0),
        ("GET", "/v1/models", 0),
        ("GET", "/health", 0),
        ("GET", "/nowhere", 0),
    ],
)
async def test_what_reads_stored_responses_counts(tokenizer, method: str, path: str, counts: int):
    async with limited(tokenizer, requests_per_minute=1, tokens_per_minute=600) as (front, _):
        answers = [await front.http.request(method, path) for _ in range(2)]
        assert used(front) == (counts, 0)
        assert answers[0].status_code != 429
        assert (answers[1].status_code == 429) is bool(counts)


@pytest.mark.parametrize("path", BODIES)
async def test_no_headers_without_limits(tokenizer, path: str):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(metrics_by_user=3)) as front:
        answer = await post(front, path)
        assert (answer.status_code, rate_headers(answer)) == (200, {})
        assert front.app.state.front.limits is None
        assert all("Admission" not in repr(layer) for layer in front.app.user_middleware)


@pytest.mark.parametrize("path", BODIES)
async def test_every_answer_says_what_is_left(tokenizer, path: str):
    async with limited(tokenizer, requests_per_minute=3, tokens_per_minute=600) as (front, clock):
        whole = await post(front, path)
        assert whole.status_code == 200, whole.text
        requests, tokens = used(front)
        assert requests == 1
        wrong = {"temperature": "hot", "sampling_params": {"temperature": "hot"}, "messages": 3, "instructions": 3}
        bad = await post(front, path, **wrong)
        assert bad.status_code == 400
        clock.advance(0.5)
        broken = await front.http.post(path, content=b"{", headers={"content-type": "application/json"})
        assert broken.status_code == 400
        refused = await post(front, path)
        assert refused.status_code == 429
        left = [str(600 - tokens)] * 2 + [str(600 - tokens + 5)] * 2
        if path == "/v1/messages":
            for answer, remaining, tokens_left in zip((whole, bad, broken, refused), "2100", left, strict=True):
                assert answer.headers["anthropic-ratelimit-requests-limit"] == "3"
                assert answer.headers["anthropic-ratelimit-requests-remaining"] == remaining
                assert answer.headers["anthropic-ratelimit-tokens-limit"] == "600"
                assert answer.headers["anthropic-ratelimit-tokens-remaining"] == tokens_left
                for limit in ("requests", "tokens"):
                    assert datetime.fromisoformat(answer.headers[f"anthropic-ratelimit-{limit}-reset"]).tzinfo
                assert not any(name.startswith("x-ratelimit") for name in answer.headers)
            assert refused.json()["error"]["type"] == "rate_limit_error"
        else:
            resets = ("20s", "40s", "59.5s", "59.5s")
            for answer, remaining, tokens_left, reset in zip(
                (whole, bad, broken, refused), "2100", left, resets, strict=True
            ):
                assert rate_headers(answer) == {
                    "x-ratelimit-limit-requests": "3",
                    "x-ratelimit-remaining-requests": remaining,
                    "x-ratelimit-reset-requests": reset,
                    "x-ratelimit-limit-tokens": "600",
                    "x-ratelimit-remaining-tokens": tokens_left,
                    "x-ratelimit-reset-tokens": answer.headers["x-ratelimit-reset-tokens"],
                }
            assert whole.headers["x-ratelimit-reset-tokens"] == format_duration(100 * tokens)
            assert refused.json() == {
                "error": {
                    "message": "Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try "
                    "again in 19.5s.",
                    "type": "requests",
                    "param": None,
                    "code": "rate_limit_exceeded",
                }
            }
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("20", "19500")
        clock.advance(19.5)
        assert (await post(front, path)).status_code == 200  # as the refusal said


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"])
async def test_a_stream_has_the_headers(tokenizer, path: str):
    async with limited(tokenizer, tokens_per_minute=600) as (front, _):
        async with front.http.stream("POST", path, json=BODIES[path] | {"stream": True}) as answer:
            left = int(answer.headers["x-ratelimit-remaining-tokens"])
            assert "x-ratelimit-limit-requests" not in answer.headers
            await answer.aread()
        assert 600 - used(front)[1] >= left  # the headers had the reservation


@pytest.mark.parametrize("path", BODIES)
async def test_too_few_tokens_left(tokenizer, path: str):
    """The refusal comes after the request was read, and says when there are enough."""
    async with limited(tokenizer, tokens_per_minute=100, requests_per_minute=5) as (front, clock):
        limits_of(front).admit(USER).reserve(99)
        refused = await post(front, path)
        assert refused.status_code == 429
        assert used(front) == (1, 99)  # the refusal counts nowhere
        problem = refused.json()["error"]
        if path == "/v1/messages":
            assert problem["type"] == "rate_limit_error"
            assert problem["details"] == {"error_code": "rate_limit_exceeded", "param": None}
            assert refused.headers["anthropic-ratelimit-tokens-remaining"] == "1"
        else:
            assert (problem["type"], problem["code"], problem["param"]) == ("tokens", "rate_limit_exceeded", None)
            assert refused.headers["x-ratelimit-remaining-tokens"] == "1"
        assert "tokens per min (TPM): Limit 100, Used 99, Requested " in problem["message"]
        wait_ms = int(refused.headers["retry-after-ms"])
        assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
        clock.advance((wait_ms - 1) / 1000)
        assert (await post(front, path)).status_code == 429
        clock.advance(0.001)
        assert (await post(front, path)).status_code == 200


async def test_no_spelling_of_a_path_passes_by(tokenizer):
    async with limited(tokenizer, requests_per_minute=1) as (front, _):
        await post(front, "/v1/completions")
        for path in ("/v1/completions/", "/v1/%63ompletions", "/v1/completions?a=b", "/v1/completions/?a=b"):
            answer = await front.http.post(path, json=BODIES["/v1/completions"])
            assert answer.status_code == 429, path
        for path in ("//v1/completions", "/V1/completions", "/v1/completions//", "/v1/./completions%2f"):
            assert (await front.http.post(path, json=BODIES["/v1/completions"])).status_code in (404, 429), path


@pytest.mark.parametrize("path", COUNTED)
async def test_tokenizing_counts_as_a_request_and_costs_no_tokens(tokenizer, path: str):
    """A user who has no tokens left may still count some."""
    async with limited(tokenizer, requests_per_minute=3, tokens_per_minute=600) as (front, _):
        limits_of(front).admit(USER).finish(5000)
        found = [await front.http.post(path, json=COUNTED[path]) for _ in range(3)]
        assert [answer.status_code for answer in found] == [200, 200, 429]
        assert used(front) == (3, 600)
        assert rate_headers(found[0])
        assert (await post(front, "/v1/completions")).status_code == 429


async def test_tokenizing_counts_among_the_requests_at_once(tokenizer):
    async with limited(tokenizer, max_requests_per_user=1) as (front, _):
        running = limits_of(front).admit(USER)
        assert (await front.http.post("/tokenize", json={"prompt": "hi"})).status_code == 429
        running.finish()
        for _ in range(2):
            assert (await front.http.post("/tokenize", json={"prompt": "hi"})).status_code == 200


OTHERS = [
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("GET", "/health", None),
    ("GET", "/v1/chat/completions", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OTHERS)
async def test_other_endpoints_do_not_count(tokenizer, method: str, path: str, body: Any):
    async with limited(tokenizer, requests_per_minute=1) as (front, _):
        await post(front, "/v1/completions")
        answer = await front.http.request(method, path, json=body)
        assert answer.status_code in (200, 405)
        assert not rate_headers(answer)


async def test_keys_are_users(tokenizer):
    users = {"fast": UserConfig(api_key="three", requests_per_minute=2)}
    async with limited(tokenizer, api_keys="one, two", users=users, requests_per_minute=1) as (front, _):
        for _ in range(3):
            assert (await post(front, "/v1/completions", "wrong")).status_code == 401
        found = [(await post(front, "/v1/completions", key)).status_code for key in ("one", "one", "two", "two")]
        assert found == [200, 429, 200, 429]
        assert [(await post(front, "/v1/completions", "three")).status_code for _ in range(3)] == [200, 200, 429]


# ---- what a request costs


def total_of(answer: dict[str, Any]) -> int:
    """Tokens of prompt and output, in the words of any endpoint."""
    usage = answer.get("usage") or answer["meta_info"]
    return sum(usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"))


@pytest.mark.parametrize("path", sorted(BODIES.keys() - {"/v1/explain"}))
async def test_a_request_costs_its_tokens(tokenizer, path: str):
    async with limited(tokenizer, tokens_per_minute=1000) as (front, _):
        answer = await post(front, path)
        assert used(front)[1] == total_of(answer.json()) > 5
        before = used(front)[1]
        await post(front, path, stream=True)
        assert used(front)[1] == 2 * before


async def test_an_explanation_costs_prompt_and_output(tokenizer):
    async with limited(tokenizer, tokens_per_minute=1000) as (front, _):
        assert (await post(front, "/v1/explain")).status_code == 200
        assert used(front)[1] == 2 + 5
    async with limited(tokenizer, tokens_per_minute=6) as (front, _):
        answer = await post(front, "/v1/explain")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "output_token_ids")
        assert used(front)[1] == 0


@pytest.mark.parametrize(
    ("fields", "reserved"),
    [
        ({}, 2 + 9),
        ({"n": 3}, 2 + 3 * 9),
        ({"best_of": 4}, 2 + 4 * 9),
        ({"prompt": ["x=", "abc="]}, 6 + 2 * 9),
        ({"prompt": ["x=", "abc="], "n": 2}, 6 + 4 * 9),
        ({"prompt": ["x=", "abc="], "n": 2, "best_of": 3}, 6 + 6 * 9),
        ({"use_beam_search": True, "best_of": 4, "n": 2}, 2 + 4 * 9),
        ({"use_beam_search": True, "n": 2}, 2 + 2 * 9),
        ({"max_tokens": None}, 2 + CONTEXT - 2),
        ({"max_tokens": None, "n": 2}, 2 + 2 * (CONTEXT - 2)),
        ({"max_tokens": 0, "echo": True}, 2 + 1),
    ],
)
async def test_what_is_reserved(tokenizer, fields: dict[str, Any], reserved: int):
    """The most that the request may compute."""
    async with limited(tokenizer, tokens_per_minute=10_000) as (front, _):
        front.client.hold = True
        running = asyncio.ensure_future(post(front, "/v1/completions", **fields))
        await front.until(lambda: bool(front.service.open_requests))
        assert used(front)[1] == reserved
        front.client.hold = False
        answer = await running
        assert answer.status_code == 200, answer.text
        if not {"use_beam_search", "echo"} & fields.keys():  # their usage leaves out what is not shown
            assert used(front)[1] == total_of(answer.json())


async def test_a_beam_search_costs_all_its_beams(tokenizer):
    async with limited(tokenizer, endless, tokens_per_minute=10_000) as (front, _):
        fields = {"use_beam_search": True, "best_of": 4, "n": 1, "max_tokens": 5, "temperature": 0}
        answer = await post(front, "/v1/completions", **fields)
        assert total_of(answer.json()) == 2 + 5
        assert used(front)[1] == 2 + 1 + 4 * 4  # the first step has one beam


async def test_an_open_limit_reserves_some_and_owes_the_rest(tokenizer):
    """Without max_tokens a request is never refused for its own size, and pays what it used."""
    client = LocalClient(endless)
    client.context = 400
    async with front_of(client, tokenizer, ServerConfig(tokens_per_minute=300)) as front:
        clock = limits_of(front).clock = Clock()
        client.hold = True
        running = asyncio.ensure_future(front.http.post("/v1/completions", json={"prompt": "x="}))
        await front.until(lambda: bool(front.service.open_requests))
        assert used(front)[1] == 2 + UNNAMED
        client.hold = False
        said = (await running).json()
        assert said["usage"]["total_tokens"] == 400, said["choices"][0]["finish_reason"]
        refused = await front.http.post("/v1/completions", json={"prompt": "x="})
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
        assert refused.headers["retry-after-ms"] == "20200"  # 101 of 300 per minute
        clock.advance(60)
        many = await front.http.post("/v1/completions", json={"prompt": "x" * 290 + "=", "max_tokens": 5})
        assert many.status_code == 429
        clock.advance(60)
        full = asyncio.ensure_future(front.http.post("/v1/completions", json={"prompt": "x" * 290 + "="}))
        assert (await full).status_code == 200  # 291 and at most 9 were reserved


@pytest.mark.parametrize(
    ("path", "fields", "param", "most"),
    [
        ("/v1/chat/completions", {"max_tokens": 200}, "max_tokens", None),
        ("/v1/chat/completions", {"max_tokens": None, "max_completion_tokens": 200}, "max_completion_tokens", None),
        ("/v1/completions", {"max_tokens": 99}, "max_tokens", 98),
        ("/v1/completions", {"max_tokens": 34, "n": 3}, "max_tokens", 32),
        ("/v1/completions", {"max_tokens": 34, "best_of": 3}, "max_tokens", 32),
        ("/v1/completions", {"max_tokens": 34, "n": 3, "use_beam_search": True}, "max_tokens", 32),
        ("/v1/completions", {"max_tokens": 50, "prompt": ["x=", "y="]}, "max_tokens", 48),
        ("/v1/completions", {"prompt": "x" * 99 + "="}, "prompt", None),
        ("/v1/completions", {"prompt": "x" * 99 + "=", "max_tokens": None}, "prompt", None),
        ("/generate", {"sampling_params": {"max_new_tokens": 99}}, "sampling_params.max_new_tokens", 98),
        ("/generate", {"text": "x" * 120}, "text", None),
        ("/v1/responses", {"max_output_tokens": 200}, "max_output_tokens", None),
        ("/v1/responses", {"input": "x" * 120}, "input", None),
        ("/v1/messages", {"max_tokens": 200}, "max_tokens", None),
    ],
)
async def test_a_request_beyond_the_limit_by_itself(
    tokenizer, path: str, fields: dict[str, Any], param: str, most: int | None
):
    """It would never be served, so it is a 400 that names the field, and does not count as tokens."""
    async with limited(tokenizer, tokens_per_minute=100, requests_per_minute=5) as (front, clock):
        answer = await post(front, path, **fields)
        problem = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert problem.get("param", problem.get("details", {}).get("param")) == param
        assert problem["message"].startswith(param)
        assert "--tokens-per-minute" in problem["message"]
        assert used(front) == (1, 0)
        if most is not None:
            assert f"must be at most {most} " in problem["message"]
            name, _, inner = param.partition(".")
            value = {inner: most} if inner else most
            clock.advance(60)
            assert (await post(front, path, None, **fields | {name: value})).status_code == 200


# ---- ends


async def test_a_client_that_leaves_pays_what_came(tokenizer):
    client = LocalClient(endless, tick_s=0.002)
    async with front_of(client, tokenizer, ServerConfig(tokens_per_minute=1000, max_requests_per_user=1)) as front:
        limits_of(front).clock = Clock()
        finished: list[int] = []
        track = front.service.observer.ended
        front.service.observer.ended = lambda record, usage: (  # type: ignore[method-assign]
            finished.append(usage.total_tokens),
            track(record, usage),
        )[1]
        body = {"prompt": "x=", "max_tokens": 200, "stream": True}
        running = asyncio.ensure_future(front.http.post("/v1/completions", json=body))
        await front.until(lambda: any(request.usage.completion_tokens > 3 for request in front.service.open_requests))
        assert used(front)[1] == 202
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await front.until(client.idle)
        assert [used(front)[1]] == finished
        assert 5 < finished[0] < 202
        assert (await front.complete(max_tokens=1)).status_code == 200  # it runs no more


async def test_an_error_before_a_token_costs_no_tokens(tokenizer):
    async with limited(tokenizer, tokens_per_minute=1000) as (front, _):
        front.client.hold = True
        running = asyncio.ensure_future(post(front, "/v1/completions"))
        await front.until(lambda: bool(front.service.open_requests))
        assert used(front)[1] == 11
        front.client.die()
        assert (await running).status_code == 503
        assert used(front)[1] == 0


async def test_a_bad_row_after_tokens_costs_them(tokenizer):
    """A request that fails in its middle pays what it has got."""
    import torch

    def script(ids: list[int]) -> torch.Tensor:
        return saying(b"Hel")(ids) if len(ids) < 5 else torch.full((258,), float("nan"))

    async with limited(tokenizer, script, tokens_per_minute=1000) as (front, _):
        answer = await post(front, "/v1/completions", stream=True)
        assert "error" in events(answer.text.removesuffix("data: [DONE]\n\n"))[-1]
        assert used(front)[1] == 2 + 3


async def test_cancelled_and_cut_requests_pay_what_came(tokenizer):
    client = LocalClient(endless, tick_s=0.002)
    async with front_of(client, tokenizer, ServerConfig(tokens_per_minute=1000)) as front:
        limits_of(front).clock = Clock()
        running = asyncio.ensure_future(front.http.post("/v1/completions", json={"prompt": "x=", "max_tokens": 250}))
        await front.until(lambda: any(request.usage.completion_tokens > 3 for request in front.service.open_requests))
        [id] = [request.id for request in front.service.open_requests]
        assert (await front.http.delete(f"/v1/requests/{id}")).status_code == 200
        assert (await running).json()["usage"]["total_tokens"] == used(front)[1] < 252


async def test_a_stop_gives_back_the_rest(tokenizer):
    async with limited(tokenizer, tokens_per_minute=1000) as (front, _):
        answer = await post(front, "/v1/completions", stop="l", max_tokens=100)
        assert used(front)[1] == total_of(answer.json()) < 10


@pytest.mark.parametrize("path", BODIES)
async def test_requests_at_once(tokenizer, path: str):
    async with limited(tokenizer, max_requests_per_user=2, requests_per_minute=100) as (front, _):
        front.client.hold = True
        running = [asyncio.ensure_future(post(front, path)) for _ in range(2)]
        await front.until(lambda: len(front.service.open_requests) == 2)
        refused = await post(front, path)
        assert refused.status_code == 429
        assert "running requests: Limit 2, Used 2" in refused.text
        assert refused.headers["retry-after"] == "1"
        assert used(front)[0] == 2
        front.client.hold = False
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        for _ in range(4):
            assert (await post(front, path)).status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_the_next_request_may_follow_the_answer_at_once(tokenizer, free_port, streamed: bool):
    """Over sockets: a client that has its whole answer runs nothing, though the server may still clean up."""
    config = ServerConfig(max_requests_per_user=1)
    app = create_app(LocalClient(saying(b"Hello")), tokenizer, config, NAME)
    with served(app, free_port(), config) as url, httpx.Client(base_url=url, timeout=300) as http:
        for path in BODIES.keys() - ({"/v1/explain"} if streamed else set()):
            body = BODIES[path] | ({"stream": True} if streamed else {})
            assert [http.post(path, json=body).status_code for _ in range(8)] == [200] * 8


async def test_a_request_that_breaks_before_it_begins_runs_no_more(tokenizer):
    async with limited(tokenizer, max_requests_per_user=1) as (front, _):
        for body in (b"{", b'{"prompt": 3}', b'{"model": "none", "prompt": "x="}', b'{"prompt": "x=", "top_p": 9}'):
            answer = await front.http.post(
                "/v1/completions", content=body, headers={"content-type": "application/json"}
            )
            assert 400 <= answer.status_code < 405
        assert (await front.complete()).status_code == 200


async def test_pages_of_other_sites_may_read_the_headers(tokenizer):
    async with limited(tokenizer, requests_per_minute=9, cors_origins="http://a.example") as (front, _):
        answer = await front.http.post(
            "/v1/completions", json=BODIES["/v1/completions"], headers={"origin": "http://a.example"}
        )
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        assert {*rate_headers(answer), "retry-after", "x-request-id"} <= {*exposed}


async def test_one_user_may_retry_as_it_is_told(tokenizer):
    """A client that waits exactly as long as it is told is served each time."""
    async with limited(tokenizer, requests_per_minute=7, tokens_per_minute=100) as (front, clock):
        waits = 0
        for _ in range(40):
            answer = await post(front, "/v1/completions", max_tokens=30)
            if answer.status_code == 200:
                continue
            waits += 1
            clock.advance(int(answer.headers["retry-after-ms"]) / 1000)
            said = re.search(r"try again in (?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:(\d+)ms)?\.", answer.text)
            assert said is not None
            minutes, seconds, ms = (float(part or 0) for part in said.groups())
            assert round((60 * minutes + seconds) * 1000 + ms) == int(answer.headers["retry-after-ms"])
            assert (await post(front, "/v1/completions", max_tokens=30)).status_code == 200
        assert waits
