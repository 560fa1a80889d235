"""Users are separate: what one user runs or stores is, for another user, as if it did not exist."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Scope

from api.harness import Front, LocalClient, endless, front_of, saying
from tailrace.api.auth import ApiKeys
from tailrace.api.openapi import GENERATING_PATHS
from tailrace.api.response_store import ResponseStore
from tailrace.api.routes import compact
from tailrace.api.schema.responses import ResponseObject, TextOptions
from tailrace.api.user import make_user_id, user_of
from tailrace.api.worker_queries import READS, answer_question
from tailrace.config import ServerConfig, UserConfig
from tailrace.wire.messages import Submit


async def found_user(client: tuple[str, int] | None, *headers: tuple[str, str]) -> str:
    """The user of a request that passes the check of keys."""
    found: list[str] = []

    async def app(scope: Scope, receive, send) -> None:
        found.append(user_of(scope))

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "client": client}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    await (ApiKeys(app, ["one", "two"]) if headers else app)(scope, None, None)  # pyright: ignore[reportArgumentType]
    return found[0]


async def test_a_key_is_a_user_whatever_its_address_and_header():
    ones = {
        await found_user(client, *headers)
        for client in (("10.0.0.1", 1), ("10.0.0.2", 2), None)
        for headers in (
            [("authorization", "Bearer one")],
            [("x-api-key", "one")],
            [("authorization", "Bearer three"), ("x-api-key", "one")],
        )
    }
    assert ones == {make_user_id("key", "one")}
    assert await found_user(None, ("x-api-key", "two")) == make_user_id("key", "two")


async def test_without_keys_an_address_is_a_user():
    assert await found_user(("10.0.0.1", 1)) == await found_user(("10.0.0.1", 2))
    ids = [await found_user(client) for client in (("10.0.0.1", 1), ("10.0.0.2", 1), ("", 1))]
    assert len(set(ids)) == 3
    assert await found_user(None) == ids[2]


def test_an_id_does_not_show_the_key():
    ids = {make_user_id(kind, name) for kind in ("key", "address") for name in ("one", "10.0.0.1", "é" * 300)}
    assert len(ids) == 6
    assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") for id in ids)


KEYS = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a response's stream."""
    return [json.loads(block.partition("data: ")[2]) for block in text.split("\n\n")[:-1]]


@pytest.fixture
async def shared(tokenizer):
    """A server of two users, which says Hello."""
    config = ServerConfig(api_keys="one, two")
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        yield front


@pytest.fixture
async def slow(tokenizer):
    """A server of two users whose answers do not end."""
    config = ServerConfig(api_keys="one, two")
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer, config) as front:
        yield front


def make_response(id: str) -> ResponseObject:
    """A response without output."""
    return ResponseObject(
        id=id,
        created_at=0,
        model="m",
        output=[],
        store=True,
        temperature=1.0,
        top_p=1.0,
        tools=[],
        tool_choice="auto",
        text=TextOptions(),
        metadata={},
        instructions=None,
        max_output_tokens=None,
        previous_response_id=None,
    )


def told(answer: httpx.Response, *ids: str) -> tuple[int, str]:
    """The answer's status and body, without the ids that the request named."""
    text = answer.text
    for id in sorted(ids, key=len, reverse=True):
        text = text.replace(id, "ID")
    return answer.status_code, text


async def test_another_users_response_does_not_exist(shared: Front):
    """Each request about A's response, by B, is answered as one about no response; and A still has it."""
    one, two = KEYS
    first = await shared.http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=one)
    made = events_of(first.text)[-1]["response"]
    id, item = made["id"], made["output"][0]["id"]
    listed = await shared.http.get(f"/v1/responses/{id}/input_items", headers=one)
    given = listed.json()["data"][0]["id"]

    async def ask(headers: dict[str, str], id: str, item: str, given: str) -> list[tuple[int, str]]:
        path, post = f"/v1/responses/{id}", shared.http.post
        references = [
            {"input": [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": name}]}
            for name in (item, given)
        ]
        answers = [
            await shared.http.get(path, headers=headers),
            await shared.http.get(path, params={"stream": "true", "starting_after": 1}, headers=headers),
            await shared.http.get(f"{path}/input_items", headers=headers),
            await post(f"{path}/cancel", headers=headers),
            await post("/v1/responses", json={"input": "and?", "previous_response_id": id}, headers=headers),
            await post(
                "/v1/responses/input_tokens", json={"input": "and?", "previous_response_id": id}, headers=headers
            ),
            await post("/v1/explain", json={"response_id": id}, headers=headers),
            *[await post("/v1/responses", json=body, headers=headers) for body in references],
            await shared.http.delete(path, headers=headers),
        ]
        return [told(answer, id, item, given) for answer in answers]

    absent = "resp_" + "0" * 32
    nothing = await ask(two, absent, f"msg_{'0' * 32}_0", f"msg_{'0' * 32}_1")
    assert {status for status, _ in nothing} == {404}
    assert await ask(two, id, item, given) == nothing
    assert {status for status, _ in await ask(one, id, item, given)} == {200}
    assert await ask(one, id, item, given) == nothing  # A has deleted it


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages"])
async def test_a_name_of_a_request_is_its_users(slow: Front, path: str):
    """Both users call their requests the same. Each cancels its own alone."""
    one, two = KEYS
    bodies = {
        "/v1/completions": {"prompt": "x=", "max_tokens": 200},
        "/generate": {"text": "x=", "sampling_params": {"max_new_tokens": 200}},
    }
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
    slow.client.hold = True
    running = [
        asyncio.ensure_future(
            slow.http.post(path, json=bodies.get(path, chat), headers=headers | {"x-request-id": "mine"})
        )
        for headers in (one, two)
    ]
    await slow.until(lambda: len(slow.client.engine.requests) == 2, 60)
    names = {request.shared_name for request in slow.client.engine.requests.values()}
    assert len(names) == 2  # the engine shares host time among the prompts of one call
    ids = {request.id for request in slow.service.open_requests}
    for name in dict.fromkeys(("mine", *ids)):
        gone = await slow.http.delete(f"/v1/requests/{name}", headers=one)
        assert gone.status_code == (200 if name == "mine" else 404)
        await slow.until(lambda: len(slow.service.open_requests) == 1, 60)
    assert (await running[0]).status_code == 200
    assert not running[1].done()
    assert (await slow.http.delete("/v1/requests/mine", headers=two)).status_code == 200
    assert (await running[1]).status_code == 200


async def test_another_users_stream_is_not_cancelled(slow: Front):
    one, two = KEYS
    running = asyncio.ensure_future(slow.http.post("/v1/responses", json={"input": "hi", "stream": True}, headers=one))
    await slow.until(lambda: len(slow.app.state.front.responses) == 1)
    [id] = [request.id for request in slow.service.open_requests]
    refused = await slow.http.post(f"/v1/responses/{id}/cancel", headers=two)
    absent = await slow.http.post(f"/v1/responses/resp_{'0' * 32}/cancel", headers=two)
    assert told(refused, id) == told(absent, f"resp_{'0' * 32}")
    assert (await slow.http.delete(f"/v1/requests/{id}", headers=two)).status_code == 404
    assert not running.done()
    assert (await slow.http.post(f"/v1/responses/{id}/cancel", headers=one)).status_code == 200
    await running


async def test_questions_of_other_front_ends_name_the_user(shared: Front):
    one, _ = KEYS
    made = (await shared.http.post("/v1/responses", json={"input": "hi"}, headers=one)).json()
    front = shared.app.state.front
    asker, other = (make_user_id("key", key) for key in ("one", "two"))
    named: str = made["id"]
    arguments: dict[str, str] = {
        **dict.fromkeys(READS, named),
        "forget": named,
        "item": made["output"][0]["id"],
        "events": f"0 {named}",
    }
    for question, argument in arguments.items():
        assert answer_question(front, question, f"{other} {argument}") is None
        assert answer_question(front, question, argument.rpartition(" ")[2]) is None
        assert answer_question(front, question, f"{asker} {argument}") is not None


def test_a_user_beyond_its_share_loses_its_own_responses():
    """A thousand small responses, or few large ones, of A leave B's conversation."""
    store = ResponseStore(max_responses=10, max_bytes=50_000)
    mine, others = store.share_of("b"), store.share_of("a")
    mine.put(make_response("first"), [])
    for place in range(100):
        others.put(make_response(f"small{place}"), [])
    assert (len(others), len(mine)) == (10, 1)
    for place in range(100):
        others.put(make_response(f"large{place}"), [{"role": "user", "content": "x" * 15_000}])
        assert store.bytes == mine.bytes + others.bytes <= 50_000
    others.put(make_response("too large"), [{"role": "user", "content": "x" * 60_000}])
    assert "too large" not in others
    assert "first" in mine


def test_the_least_recently_used_response_goes_first():
    share = ResponseStore(max_responses=3).share_of("a")
    for name in "abc":
        share.put(make_response(name), [])
    share.find("a")
    share.put(make_response("d"), [])
    assert [name in share for name in "abcd"] == [True, False, True, True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4000), st.booleans()), max_size=80))
def test_an_equal_part_of_the_store_is_safe(steps: list[tuple[int, int, bool]]):
    """A user with at most an equal part of the bytes loses nothing by what others store."""
    store = ResponseStore(max_bytes=40_000)
    shares = [store.share_of(str(user)) for user in range(4)]
    for place, (user, size, streamed) in enumerate(steps):
        before = [set(share._stored) for share in shares]  # pyright: ignore[reportPrivateUsage]
        held = [share.bytes for share in shares]
        shares[user].put(make_response(str(place)), [{"content": "x" * size}], streamed=streamed)
        shares[user].record(str(place), b"x" * size)
        for other in {0, 1, 2, 3} - {user}:
            if held[other] <= 10_000:
                assert before[other] <= set(shares[other]._stored)  # pyright: ignore[reportPrivateUsage]
        assert store.bytes == sum(share.bytes for share in shares) <= 40_000
        assert len(store) == sum(map(len, shares))


def test_a_share_is_one_object_while_anybody_has_it():
    store = ResponseStore()
    share = store.share_of("a")
    share.put(make_response("r"), [])
    share.discard("r")
    assert store.share_of("a") is share
    share.put(make_response("r"), [])
    del share
    assert "r" in store.share_of("a")
    store.share_of("a").discard("r")
    gc.collect()
    assert not store._known  # pyright: ignore[reportPrivateUsage]


LONG = "x=" * 40 + "="  # several blocks of the prefix cache
PROMPTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
    "/v1/completions": {"prompt": LONG, "max_tokens": 2},
    "/generate": {"text": LONG, "sampling_params": {"max_new_tokens": 2}},
    "/v1/responses": {"input": LONG, "max_output_tokens": 2},
    "/v1/responses/compact": {"model": "scripted", "input": LONG},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
    "/inference/v1/generate": {"token_ids": [*LONG.encode()], "sampling_params": {"max_tokens": 2}},
}


@pytest.fixture(autouse=True)
def short_order(monkeypatch):
    """The order to compact a conversation fits the small context."""
    monkeypatch.setattr(compact, "ORDER", "Sum up.")


def cached_tokens(answer: Any) -> int:
    """How much of the prompt came from the cache, in the words of any endpoint."""
    if isinstance(answer, dict):
        found = [value for name, value in answer.items() if name in ("cached_tokens", "cache_read_input_tokens")]
        return next(iter(found), 0) or max(map(cached_tokens, answer.values()), default=0)
    return 0


async def hits(front: Front, path: str, *asks: tuple[int, str | None]) -> list[bool]:
    """Whether each request, by (user, salt) and one after the other, finds a part of its prompt in the cache."""
    found = []
    for user, salt in asks:
        body = PROMPTS[path] | ({} if salt is None else {"cache_salt": salt})
        answer = await front.http.post(path, json=body, headers=KEYS[user])
        assert answer.status_code == 200, answer.text
        found.append(cached_tokens(answer.json()) > 0)
    return found


def test_every_endpoint_that_takes_a_prompt_has_one_here():
    assert {*PROMPTS} == GENERATING_PATHS - {"/v1/explain"}


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("isolation", ["auto", "user", "salt", "none"])
async def test_whose_prefixes_a_request_finds(tokenizer, path: str, isolation: Any):
    config = ServerConfig(api_keys="one, two", cache_isolation=isolation)
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        apart = isolation in ("auto", "user")
        assert await hits(front, path, (0, None), (0, None), (1, None), (1, "")) == [False, True, not apart, True]
        if isolation == "none":
            refused = await front.http.post(path, json=PROMPTS[path] | {"cache_salt": "s"}, headers=KEYS[0])
            assert refused.status_code == 400
            assert "cache_salt has no effect with --cache-isolation none" in refused.text
        else:
            assert await hits(front, path, (0, "s"), (0, "s"), (1, "s"), (0, "t")) == [False, True, not apart, False]


@pytest.mark.parametrize("keys", ["", "one", "one, one"])
async def test_one_user_has_no_salt(tokenizer, keys: str):
    """So all hashes of blocks are the same as without users."""
    client = LocalClient(saying(b"Hello"))
    async with front_of(client, tokenizer, ServerConfig(api_keys=keys)) as front:
        sent: list[Submit] = []
        client.send = lambda message, send=client.send: sent.append(message) or send(message)  # type: ignore[method-assign]
        for path in PROMPTS:
            await hits(front, path, (0, None))
        assert [message.owner.cache_salt for message in sent] == [b""] * len(PROMPTS)


@pytest.mark.parametrize("most", [0, 1, 5])
async def test_a_priority_among_other_users_is_bounded(tokenizer, most: int):
    client = LocalClient(saying(b"Hello"))
    async with front_of(client, tokenizer, ServerConfig(api_keys="one, two", max_priority=most)) as front:
        sent: list[Submit] = []
        client.send = lambda message, send=client.send: sent.append(message) or send(message)  # type: ignore[method-assign]
        asked = [-(2**31), -2, 0, 2, 2**31 - 1]
        for path in PROMPTS:
            for priority in asked:
                answer = await front.http.post(path, json=PROMPTS[path] | {"priority": priority}, headers=KEYS[1])
                assert answer.status_code == 200, answer.text
        near = min(most, 2)
        assert [message.priority for message in sent] == [-most, -near, 0, near, most] * len(PROMPTS)
        assert [message.owner.rank for message in sent] == asked * len(PROMPTS)
        assert {message.owner.user for message in sent} == {make_user_id("key", "two")}


async def test_a_users_own_bound_of_priority_and_weight_reach_the_engine(tokenizer):
    client = LocalClient(saying(b"Hello"))
    users = {"alice": UserConfig(api_key="two", max_priority=7, weight=3), "bob": UserConfig(api_key="three")}
    async with front_of(client, tokenizer, ServerConfig(api_keys="one", users=users, max_priority=1)) as front:
        sent: list[Submit] = []
        client.send = lambda message, send=client.send: sent.append(message) or send(message)  # type: ignore[method-assign]
        for key in ("one", "two", "three"):
            head = {"authorization": f"Bearer {key}"}
            answer = await front.http.post("/v1/completions", json={"prompt": "x=", "priority": -9}, headers=head)
            assert answer.status_code == 200, answer.text
    assert [(message.priority, message.owner.weight) for message in sent] == [(-1, 1), (-7, 3), (-1, 1)]
    assert [message.owner.rank for message in sent] == [-9] * 3, "among its own requests a number counts in full"


async def test_an_urgent_flood_of_one_user_delays_another_by_one_place_each(slow: Front):
    """A's requests of the smallest priority stay behind B's request that came before them."""
    slow.client.hold = True
    body = {"prompt": "x=", "max_tokens": 3}
    running = []
    for place, (user, priority) in enumerate([(0, 5), (1, 0), *[(0, -(2**31))] * 3]):
        asked = slow.http.post("/v1/completions", json=body | {"priority": priority}, headers=KEYS[user])
        running.append(asyncio.ensure_future(asked))
        await slow.until(lambda count=place + 1: len(slow.client.engine.waiting) == count, 60)
    waiting = [sequence.request.owner for sequence in slow.client.engine.waiting]
    assert [owner.rank for owner in waiting] == [-(2**31), 0, -(2**31), -(2**31), 5]
    slow.client.hold = False
    await asyncio.gather(*running)


async def test_an_explanation_keeps_the_salt_of_its_response(shared: Front):
    """Else its prompt could be found without the salt afterwards."""
    one, _ = KEYS
    sent: list[Submit] = []
    send = shared.client.send
    shared.client.send = lambda message: sent.append(message) or send(message)  # type: ignore[method-assign]
    made = await shared.http.post("/v1/responses", json=PROMPTS["/v1/responses"] | {"cache_salt": "s"}, headers=one)
    explained = await shared.http.post("/v1/explain", json={"response_id": made.json()["id"]}, headers=one)
    assert explained.status_code == 200, explained.text
    assert sent[0].owner == sent[1].owner
    assert sent[0].owner.cache_salt


async def test_a_salt_out_of_range(shared: Front):
    for salt in (3, ["s"], "x" * 1025):
        answer = await shared.http.post("/v1/completions", json={"prompt": "x=", "cache_salt": salt}, headers=KEYS[0])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
