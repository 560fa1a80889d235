"""Work before the engine hears of a request: in order, with turns of the loop between, and not for clients that have
left."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.requests import ClientDisconnect, Request

from api.harness import VOCAB, LocalClient, front_of
from tailrace.api import body, response_input, work_queue
from tailrace.api.routes import chat, completions
from tailrace.api.work_queue import LONG_CHARS, LONG_THREADS, SHORT_CHARS, SLICE_S, WorkQueue

LONG_S = SLICE_S * 3


class Client:
    """One that leaves when it is told to. user: its address."""

    def __init__(self, user: str = "") -> None:
        self.gone = asyncio.Event()
        self.request = Request({"type": "http", "client": (user, 1)}, self.receive)

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_short_work_keeps_its_order_and_others_come_between():
    turns, told = WorkQueue(), []

    def work(i: int) -> int:
        time.sleep(LONG_S)
        told.append(i)
        return i

    async def beside() -> None:
        while len(told) < 8:
            told.append("turn")
            await asyncio.sleep(0)

    results, _ = await asyncio.gather(
        asyncio.gather(*(turns.run(Client().request, lambda i=i: work(i), 1) for i in range(4))), beside()
    )
    assert results == [0, 1, 2, 3]
    assert [one for one in told if one != "turn"] == [0, 1, 2, 3]
    places = [told.index(i) for i in range(4)]
    assert all("turn" in told[a:b] for a, b in pairwise(places))


async def test_short_pieces_share_a_turn_of_the_loop_until_its_slice_is_used_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(work_queue, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    queue, turns, client = WorkQueue(), [], Client()

    def work(took_s: float) -> None:
        now[0] += took_s

    asyncio.get_running_loop().call_soon(turns.append, 1)
    for _ in range(3):
        await queue.run(client.request, lambda: work(SLICE_S / 4), 1)
    assert not turns
    await queue.run(client.request, lambda: work(SLICE_S), 1)
    assert not turns
    await queue.run(client.request, lambda: work(SLICE_S), 1)
    assert turns


@pytest.mark.parametrize("size", [1, LONG_CHARS + 1])
async def test_nothing_is_done_for_a_client_that_left_while_it_waited(size):
    turns, done = WorkQueue(), []
    hold = lambda: time.sleep(0.05)  # noqa: E731
    before = [asyncio.create_task(turns.run(Client().request, hold, size)) for _ in range(9)]
    await asyncio.sleep(0)
    client = Client()
    waiting = asyncio.create_task(turns.run(client.request, lambda: done.append(1), size))
    client.gone.set()
    with pytest.raises(ClientDisconnect):
        await waiting
    await asyncio.gather(*before)
    await turns.run(Client().request, lambda: None, size)
    assert not done


async def test_a_client_that_leaves_takes_its_waiting_conversation_along():
    turns, done, entered, leave = WorkQueue(), [], threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(60)

    before = asyncio.create_task(turns.render(Client().request, hold))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    client = Client()
    waiting = asyncio.create_task(turns.render(client.request, lambda: done.append(1)))
    client.gone.set()
    with pytest.raises(ClientDisconnect):
        await waiting
    leave.set()
    await before
    await turns.render(Client().request, lambda: done.append(2))
    assert done == [2]


SIZES = {"medium": SHORT_CHARS + 1, "very long": LONG_CHARS + 1}
THREADS_OF = {"medium": work_queue.THREADS, "very long": LONG_THREADS}


async def test_users_take_turns_on_the_loop(monkeypatch: pytest.MonkeyPatch):
    """All pieces take the same time: B's pieces, which come last, come after one of A's each."""
    ticks = count()
    monkeypatch.setattr(work_queue, "SLICE_S", 0.5)
    monkeypatch.setattr(work_queue, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    queue, order = WorkQueue(), []
    names = ("first", *(f"a{i}" for i in range(6)), "b0", "b1")
    await asyncio.gather(
        *(queue.run(Client(name[0]).request, lambda name=name: order.append(name), 1) for name in names)
    )
    assert order == ["first", "a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


@pytest.mark.parametrize("kind", THREADS_OF)
async def test_one_user_leaves_a_thread_to_others_and_loses_none(kind: str):
    """However many bodies of A are on threads, or wait for one, B's is next."""
    queue, gate, running = WorkQueue(), threading.Event(), []

    def hold() -> None:
        running.append(1)
        assert gate.wait(60)

    held = [asyncio.create_task(queue.run(Client("a").request, hold, SIZES[kind])) for _ in range(99)]
    while len(running) < THREADS_OF[kind]:
        await asyncio.sleep(0.001)
    assert await asyncio.wait_for(queue.run(Client("b").request, lambda: 1, SIZES[kind]), 60) == 1
    assert await asyncio.wait_for(queue.run_unwatched("b", lambda: 2, SIZES[kind]), 60) == 2
    assert len(running) == THREADS_OF[kind]
    gate.set()
    await asyncio.gather(*held)


class PanicError(BaseException):
    """As libraries in Rust have it."""


ERRORS = (ZeroDivisionError, PanicError, ValueError)


def fail(error: type[BaseException]) -> None:
    raise error


@pytest.mark.parametrize("size", [1, SHORT_CHARS + 1, LONG_CHARS + 1])
async def test_what_fails_fails_for_itself_alone(size):
    turns = WorkQueue()
    failed = [turns.run(Client().request, lambda error=error: fail(error), size) for error in ERRORS]
    told = await asyncio.gather(*failed, turns.run(Client().request, lambda: "fine", size), return_exceptions=True)
    assert [type(one) for one in told] == [*ERRORS, str]


LARGE = "x" * 100_000
USER = [{"role": "user", "content": "x"}]
SCORED = {"prompt": "x" * 200}


@pytest.mark.parametrize(
    ("path", "asked", "where", "name"),
    [
        ("/v1/completions", {"prompt": "x=", "unknown": LARGE}, body, "log_once"),
        ("/v1/chat/completions", {"messages": USER, "unknown": LARGE}, chat, "read_tools"),
        ("/v1/completions", {"prompt": "x=", "unknown": LARGE}, completions, "constraint_of"),
        ("/v1/completions", SCORED | {"prompt_logprobs": 20}, completions, "prompt_logprobs"),
        ("/v1/responses", {"input": "x", "unknown": LARGE, "max_tokens": None}, response_input, "check_messages"),
        ("/tokenize", {"prompt": "x" * 5000, "return_token_strs": True}, "tokenizer", "token_of"),
        ("/detokenize", {"tokens": [65] * 5000}, "tokenizer", "decode"),
        ("/v1/completions", {"prompt": "x=", "unknown": LARGE}, "tokenizer", "encode"),
    ],
)
async def test_what_takes_long_is_done_beside_the_loop(tokenizer, monkeypatch, path, asked, where, name):
    where, threads = tokenizer if where == "tokenizer" else where, set()
    real = getattr(where, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread())
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, noted)
    async with front_of(LocalClient(lambda ids: torch.zeros(VOCAB)), tokenizer) as front:
        answer = await front.http.post(path, json={"max_tokens": 1} | asked)
    assert answer.status_code == 200, answer.text
    assert threads
    assert threading.current_thread() not in threads


async def test_a_long_text_is_spelt_without_the_lock(tokenizer, monkeypatch):
    held = []
    monkeypatch.setattr(tokenizer.backend.__class__, "decode", lambda *a, **k: held.append(a), raising=False)
    assert tokenizer.decode([65] * 5000) == "A" * 5000
    assert not held
