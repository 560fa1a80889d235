"""What a request leaves behind is freed when it is over. What is left to a collection is found tens of thousands of
objects at a time, and meanwhile no stream goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from api.harness import NAME, LocalClient, saying, served
from tailrace.api.app import create_app
from tailrace.config import ServerConfig
from tailrace.wire.messages import Hello, Stats
from tailrace.wire.sockets import Address, AsyncFrontSocket, EngineSocket

OURS = (
    "tailrace.api",
    "tailrace.text",
    "tailrace.wire",
    "uvicorn",
    "zmq",
)  # not the engine, whose collections are short
BODIES = {
    "whole": {"prompt": "x="},
    "streamed": {"prompt": "x=", "stream": True, "logprobs": 2, "stop": ["zzz"]},
    "several": {"prompt": ["x=", "y="], "n": 2, "stream": True},
    "echoed": {"prompt": "x=", "echo": True, "logprobs": 1, "max_tokens": 2},
    "refused": {"prompt": "x=", "temperature": -1},
    "searched, streamed": {"prompt": "x=", "use_beam_search": True, "n": 2, "max_tokens": 4, "stream": True},
    "searched": {"prompt": "x=", "use_beam_search": True, "best_of": 2, "max_tokens": 4},
}


@pytest.fixture(autouse=True)
def older_objects_rest() -> Iterator[None]:
    """What other tests have made is not looked at in the collections here: each would take half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextlib.contextmanager
def left_over() -> Iterator[Counter[str]]:
    """What only a collection finds of what is made in this block: types of ours, and how many."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(
            type(one).__qualname__ for one in gc.garbage if str(getattr(type(one), "__module__", "")).startswith(OURS)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_circle_is_seen():
    class Circle:
        __module__ = "tailrace.api.planted"

    with left_over() as found:
        one = Circle()
        one.self = one  # type: ignore[attr-defined]
        del one
    assert found == {"test_a_circle_is_seen.<locals>.Circle": 1}


def ask(port: int, body: dict[str, object], leave: bool = False) -> None:
    """One request on a connection of its own, to its end; `leave`: to its first bytes."""
    raw = json.dumps({"max_tokens": 20, "temperature": 0} | body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n"  # noqa: E501, one text
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        line.sendall(head.encode() + b"Connection: close\r\n\r\n" + raw)
        while line.recv(65536) and not leave:
            pass


@pytest.mark.few(2)
@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("kind", BODIES)
def test_a_request_leaves_nothing_to_be_collected(tokenizer, free_port, kind, leave):
    port = free_port()
    config = ServerConfig(port=port)
    app = create_app(LocalClient(saying(b"Hello, nice to meet you.")), tokenizer, config, NAME)
    with served(app, port, config):
        for _ in range(3):  # what is made once is made
            ask(port, BODIES[kind])
        with left_over() as found:
            for _ in range(5):
                ask(port, BODIES[kind], leave)
            end = time.monotonic() + 300
            while app.state.front.default.open_requests and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.1)  # the connection's last words
        assert not found


async def test_waiting_for_the_engine_leaves_nothing_to_be_collected():
    address = Address()
    engine, front = EngineSocket(address.url), AsyncFrontSocket(address.url)
    try:
        front.send(Hello())
        engine.wait(10_000)
        ((client, _),) = engine.receive()

        async def told(count: int) -> None:
            for _ in range(count):
                waiting = asyncio.ensure_future(front.receive())
                await asyncio.sleep(0)
                assert engine.send(client, [Stats()])
                assert len(await waiting) == 1

        await told(3)
        with left_over() as found:
            await told(20)
        assert not found
        for _ in range(5):
            assert engine.send(client, [Stats(), Stats()])
        got = 0
        while got < 10:  # nothing of what has come meanwhile is forgotten
            got += len(await front.receive())
        assert got == 10
    finally:
        front.close()
        engine.close()
        address.remove()
