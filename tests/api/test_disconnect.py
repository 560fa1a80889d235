"""A client that leaves, at any point of a request's life, takes everything with it; over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from dataclasses import dataclass

import pytest
from starlette.requests import ClientDisconnect

from api.harness import NAME, LocalClient, endless, served
from tailrace.api.app import create_app
from tailrace.api.disconnect import unless_disconnected
from tailrace.config import ServerConfig

DISCONNECTS = 200


@dataclass(frozen=True)
class Leaving:
    """When and how a client goes: after so long or so many bytes; `asks`, the share of the request it sends; by a reset
    or an orderly end.
    """

    after_s: float = 0.3
    after_bytes: float = math.inf
    asks: float = 1.0
    reset: bool = False


async def leave(port: int, path: str, body: dict, how: Leaving) -> int:
    """Ask, read for a while, and go; returns how many bytes came."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"  # noqa: E501, one text
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    whole = head.encode() + raw
    writer.write(whole[: int(how.asks * len(whole))])
    got = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(how.after_s):
            await writer.drain()
            while got < how.after_bytes and (data := await reader.read(200)):
                got += len(data)
    if how.reset:
        writer.transport.abort()
    else:
        writer.close()
    return got


def bodies(rng: random.Random) -> tuple[str, dict]:
    """A request that would go on for much longer than the test."""
    common = {
        "ignore_eos": True,
        "stream": rng.random() < 0.6,
        "n": rng.choice([1, 1, 1, 3]),
        "stop": rng.choice([None, "never to come"]),
        "seed": 1,
    }
    if rng.random() < 0.5:
        return "/v1/chat/completions", common | {"messages": [{"role": "user", "content": "x" * rng.randrange(1, 100)}]}
    return "/v1/completions", common | {"prompt": rng.choice(["a", ["a", "bc"], [1, 2, 3]])}


def wait_until_idle(client: LocalClient, live: set) -> None:
    until = time.monotonic() + 300
    while not (client.idle() and not live):
        assert time.monotonic() < until, (client.engine.stats(), client.streams.open_streams, live)
        time.sleep(0.01)


@pytest.mark.long
def test_case_25_200_disconnects_leave_nothing(tokenizer, free_port):
    port = free_port()
    client = LocalClient(endless, tick_s=0.05)  # 250 tokens at 50 ms: no answer would end by itself
    app = create_app(client, tokenizer, ServerConfig(port=port), NAME)
    rng = random.Random(5)

    async def storm() -> list[int]:
        gate = asyncio.Semaphore(20)

        async def one() -> int:
            async with gate:
                path, body = bodies(rng)
                asks = rng.choice([1, 1, 1, rng.random()])  # some leave before they have asked
                after_s, after_bytes = rng.uniform(0, 0.4), rng.choice([1, 300, math.inf])
                if body["stream"] and asks == 1 and after_bytes < math.inf:
                    after_s = 300.0  # a third of them waits for what it came for, however busy the machine is
                return await leave(port, path, body, Leaving(after_s, after_bytes, asks, reset=rng.random() < 0.5))

        return await asyncio.gather(*(one() for _ in range(DISCONNECTS)))

    with served(app, port):
        got = asyncio.run(storm())
        wait_until_idle(client, app.state.front.default.open_requests)
        assert client.engine.stats().finished.keys() <= {"abort"}  # none of them ended otherwise
        assert client.engine.stats().finished["abort"] > DISCONNECTS / 5
        assert DISCONNECTS / 5 < sum(1 for n in got if n) < DISCONNECTS  # some left before, some after the first byte


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold", [False, True])
def test_one_that_leaves_before_and_after_the_first_token(tokenizer, free_port, stream, hold):
    """`hold`: the engine makes no step, so the request is still waiting when the client leaves."""
    port = free_port()
    client = LocalClient(endless, tick_s=0.01)
    client.hold = hold
    app = create_app(client, tokenizer, ServerConfig(port=port), NAME)
    body = {"prompt": "a", "ignore_eos": True, "stream": stream}
    with served(app, port):

        async def ask_and_leave() -> None:
            gone = asyncio.create_task(leave(port, "/v1/completions", body, Leaving()))
            async with asyncio.timeout(300):
                while not client.engine.requests:
                    await asyncio.sleep(0.005)
            await gone

        asyncio.run(ask_and_leave())
        if hold:  # nothing was ever computed, and yet it is gone from the waiting line
            until = time.monotonic() + 300
            while client.engine.requests:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert client.engine.stats().generated_tokens == 0
            client.hold = False
        wait_until_idle(client, app.state.front.default.open_requests)
        assert app.state.front.default.metrics.aborted.labels("disconnect")._value.get() == 1


class Line:
    """A connection whose client leaves when told."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_that_ends_first_gives_its_result():
    gone: list[int] = []
    assert await unless_disconnected(Line().receive, asyncio.sleep(0, "done"), lambda: gone.append(1)) == "done"
    assert not gone


async def test_work_that_fails_raises():
    async def fail():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await unless_disconnected(Line().receive, fail(), lambda: None)


@pytest.mark.parametrize("how", ["client leaves", "caller is cancelled"])
async def test_work_is_cancelled_after_the_owner_was_told(how):
    line, log = Line(), []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            log.append("work ended")

    task = asyncio.create_task(unless_disconnected(line.receive, work(), lambda: log.append("told")))
    await asyncio.sleep(0.01)
    if how == "client leaves":
        line.left.set()
        with pytest.raises(ClientDisconnect):
            await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert log == ["told", "work ended"]
