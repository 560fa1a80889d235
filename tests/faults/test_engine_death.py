"""The engine dies, hangs, or loses its parent; clients vanish by the hundred. Everything ends, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tailrace.config import CacheConfig, EngineConfig, ModelConfig
from tailrace.params import SamplingParams
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.messages import Failed
from tailrace.wire.sync_client import SyncClient

SLOW = EngineConfig(model=ModelConfig(model="scripted:count:2"), cache=CacheConfig(num_blocks=512))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        await asyncio.sleep(0.02)


@pytest.mark.long  # api/test_serve: by HTTP
async def test_kill_9_under_load_ends_every_stream():
    client = AsyncClient(SLOW)
    await client.start()
    pid = client.pid
    ends: list[object] = []

    async def read(i: int) -> None:
        async for events in client.submit(
            [i], SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True, n=1 + i % 2)
        ):
            for event in events:
                if not hasattr(event, "token_ids"):
                    ends.append(event)

    readers = [asyncio.create_task(read(i)) for i in range(40)]
    await until(lambda: client.stats.steps > 5)
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*readers), 300)
    assert len(ends) == 60
    assert all(isinstance(event, Failed) and event.code == "engine_dead" for event in ends)
    assert client.error is not None
    assert "signal 9" in str(client.error)
    late = [events async for events in client.submit([1], SamplingParams())]
    assert late[0][0].code == "engine_dead"
    await client.close()
    assert not alive(pid)


@pytest.mark.long
async def test_a_restarted_engine_serves_again():
    client = AsyncClient(SLOW)
    await client.start()
    os.kill(client.pid, signal.SIGKILL)
    await asyncio.wait_for(client.died.wait(), 300)
    await client.restart()
    assert client.error is None
    got = [e async for events in client.submit([5], SamplingParams(temperature=0.0, max_tokens=3)) for e in events]
    assert [i for e in got if hasattr(e, "token_ids") for i in e.token_ids] == [6, 7, 8]
    await client.close()


@pytest.mark.long
def test_a_hanging_engine_does_not_hang_close():
    client = SyncClient(SLOW)
    client.start()
    pid = client._process.pid
    os.kill(pid, signal.SIGSTOP)
    client.close()
    assert not alive(pid)


@pytest.mark.long  # api/test_front_ends: a whole server's
def test_the_engine_dies_with_its_parent():
    code = (
        "import sys; from tailrace.config import *; from tailrace.wire.sync_client import SyncClient\n"
        "c = SyncClient(EngineConfig(model=ModelConfig(model='scripted:count'))); c.start()\n"
        "print(c._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        engine = int(parent.stdout.readline())
        assert alive(engine)
        parent.kill()
        parent.wait()
        end = time.monotonic() + 300
        while alive(engine):
            assert time.monotonic() < end, "the engine outlives its parent"
            time.sleep(0.05)


@pytest.mark.long
async def test_200_clients_that_vanish_at_random_leave_nothing():
    client = AsyncClient(SLOW)
    await client.start()
    chance = random.Random(1)

    async def vanish(i: int) -> None:
        prompt = [chance.randrange(40_000) for _ in range(chance.randrange(1, 300))]
        params = SamplingParams(temperature=0.0, max_tokens=200, n=chance.randrange(1, 4), ignore_eos=True)

        async def read() -> None:
            async for _ in client.submit(prompt, params):
                pass

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read(), chance.random() * 0.4)

    tasks = []
    for i in range(200):
        tasks.append(asyncio.create_task(vanish(i)))
        await asyncio.sleep(chance.random() * 0.01)
    await asyncio.gather(*tasks)
    await until(lambda: client.unacknowledged == 0)
    await until(lambda: (client.stats.running, client.stats.waiting, client.stats.blocks_used) == (0, 0, 0))
    assert client.stats.finished.get("abort", 0) > 50
    assert not client._streams.open_streams
    got = [e async for events in client.submit([5], SamplingParams(temperature=0.0, max_tokens=3)) for e in events]
    assert [i for e in got if hasattr(e, "token_ids") for i in e.token_ids] == [6, 7, 8]
    await client.close()


@pytest.mark.long
def test_malformed_frames_do_no_harm():
    import zmq

    client = SyncClient(SLOW)
    client.start()
    with zmq.Context.instance().socket(zmq.DEALER) as rogue:
        rogue.connect(client._process.address.url)
        for frame in (b"", b"\x00garbage", b"\x91\x81\xa4type\xa7Unknown"):
            rogue.send(frame)
        time.sleep(0.2)
    got = [e for events in client.submit([5], SamplingParams(temperature=0.0, max_tokens=2)) for e in events]
    assert len(got) == 3
    client.close()


@pytest.mark.long
def test_the_address_is_private_and_removed():
    client = SyncClient(SLOW)
    client.start()
    folder = client._process.address.folder
    assert os.stat(folder).st_mode & 0o777 == 0o700
    client.close()
    assert not os.path.exists(folder)
