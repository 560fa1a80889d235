"""What no process of ours sends is dropped at every socket, and the next message is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from tailrace.wire.messages import Drained, Hello, encoder
from tailrace.wire.sockets import Address, AsyncFrontSocket, EngineSocket, FrontSocket

WAIT_MS = 60_000
HELLO, DRAINED = encoder.encode([Hello()]), encoder.encode([Drained()])
SEVERAL = {  # messages of more than one frame; None is a good frame
    "two": [None, None],
    "an empty frame first": [b"", None],
    "an empty frame last": [None, b""],
    "only empty frames": [b"", b"", b""],
    "thousands": [None] * 5000,
    "megabytes": [b"x" * (4 << 20), None],
}
MALFORMED = {
    "nothing": b"",
    "no MessagePack": b"\xc1",
    "no list": b"\x80",
    "deep": b"\x91\x81\xa1a" + b"\x91" * 100_000 + b"\x90",
    "no UTF-8": b"\x91\x81\xa4type\xa5\xff\xff\xff\xff\xff",
    "2^32 items": b"\xdd\xff\xff\xff\xff",
}


@pytest.fixture
def url() -> Iterator[str]:
    address = Address()
    yield address.url
    address.remove()


def make_peer(kind: int) -> zmq.Socket:
    socket = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


@pytest.mark.parametrize("case", [*SEVERAL, *MALFORMED])
def test_engine_drops_what_it_can_not_read(url: str, case: str):
    frames = SEVERAL.get(case) or [MALFORMED[case]]
    engine, peer = EngineSocket(url), make_peer(zmq.DEALER)
    peer.connect(url)
    peer.send_multipart([HELLO if frame is None else frame for frame in frames])
    peer.send(HELLO)
    found: list[object] = []
    while not found:
        engine.wait(WAIT_MS)
        found += [messages for _, messages in engine.receive()]
    assert found == [[Hello()]]
    peer.close()
    engine.close()


@pytest.mark.parametrize("case", SEVERAL)
def test_front_end_drops_messages_of_several_frames(url: str, case: str):
    frames = [DRAINED if frame is None else frame for frame in SEVERAL[case]]
    engine = make_peer(zmq.ROUTER)
    engine.bind(url)
    front = FrontSocket(url)
    front.send(Hello())
    client, _ = engine.recv_multipart()
    engine.send_multipart([client, *frames])
    engine.send_multipart([client, DRAINED])
    assert front.receive(WAIT_MS) == []
    assert front.receive(WAIT_MS) == [Drained()]
    front.close()
    engine.close()


@pytest.mark.parametrize("case", SEVERAL)
async def test_asyncio_front_end_drops_messages_of_several_frames(url: str, case: str):
    frames = [DRAINED if frame is None else frame for frame in SEVERAL[case]]
    engine = make_peer(zmq.ROUTER)
    engine.bind(url)
    front = AsyncFrontSocket(url)
    front.send(Hello())
    client, _ = await asyncio.to_thread(engine.recv_multipart)
    for _ in range(3):
        engine.send_multipart([client, *frames])
    engine.send_multipart([client, DRAINED])
    found: list[object] = []
    while not found:
        found += await front.receive()
    assert found == [Drained()]
    front.close()
    engine.close()
