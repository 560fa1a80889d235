"""Under load over real sockets: slow readers, thousands of streams, storms of aborts. What the others get is what they
get in peace."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from typing import Any

import pytest

from api.processes import Process

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

LETTERS = list(range(97, 123))
WITNESSES = 6
FAST = {"model": "scripted:next:1", "scheduler": {"max_num_seqs": 64, "max_waiting": 10_000}, "num_blocks": 16384}


def witness(i: int) -> dict:
    """A request whose answer says at once if anything of another one got into it: letters drawn by a seed of its
    own."""
    return {
        "prompt": f"witness {i}",
        "seed": i,
        "temperature": 1.5,
        "allowed_token_ids": LETTERS,
        "max_tokens": 60 + i,
        "ignore_eos": True,
        "logprobs": i % 3,
        "stop": ["never to come"],
        "repetition_penalty": 1.1,
    }


async def post(
    server: Process, body: dict, path: str = "/v1/completions"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask; nothing of the answer has been read."""
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    writer.write(head_of(path, len(raw)) + raw)
    return reader, writer


def head_of(path: str, length: int) -> bytes:
    """Of a POST on a connection of its own."""
    lines = (
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "connection: close",
        f"content-length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


async def answer(server: Process, body: dict) -> dict:
    """A whole answer, without what differs from one to the next."""
    reader, writer = await post(server, body)
    whole = await reader.read()
    writer.close()
    head, _, payload = whole.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], whole[:300]
    return {key: value for key, value in json.loads(payload).items() if key in ("choices", "usage")}


def data(whole: bytes) -> list[str]:
    """What the events of a streamed answer say."""
    body = whole.partition(b"\r\n\r\n")[2]
    text, at = b"", 0
    while at < len(body):  # chunks
        size, _, _ = body[at:].partition(b"\r\n")
        begin = at + len(size) + 2
        text += body[begin : begin + int(size, 16)]
        at = begin + int(size, 16) + 2
    return [line[6:].decode() for line in text.split(b"\n") if line.startswith(b"data: ")]


async def quiet(server: Process) -> list[dict]:
    """What the witnesses are told in peace, one after the other."""
    return [await answer(server, witness(i)) for i in range(WITNESSES)]


async def idle(server: Process, timeout_s: float = 300) -> dict[str, float]:
    """Nothing runs, waits or is held any more; all counters."""
    until = time.monotonic() + timeout_s
    while True:
        metrics = await asyncio.to_thread(server.metrics)
        held = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")
        if not any(metrics[f"tailrace_{name}"] for name in held):
            return metrics
        assert time.monotonic() < until, metrics
        await asyncio.sleep(0.1)


# ---- one byte per second

SLOW: dict[str, Any] = {
    "prompt": "slow",
    "seed": 1,
    "allowed_token_ids": LETTERS,
    "ignore_eos": True,
    "stream": True,
    "logprobs": 20,
    "max_tokens": 2500,
    "n": 4,  # 12 MB: more than the kernel buffers
}
ROUNDS = 5  # of the witnesses, while the slow ones read
SLOW_READERS = {"cut": 2, "keep": 1}  # whoever is kept is paid for to the last token


async def trickle(server: Process) -> tuple[asyncio.Event, asyncio.Task[bytes]]:
    """A client that reads a byte per second until told otherwise, and then the rest at once."""
    hurry = asyncio.Event()
    raw = json.dumps(SLOW).encode()
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    await loop.sock_sendall(sock, head_of("/v1/completions", len(raw)) + raw)

    async def read() -> bytes:
        got = bytearray()
        while piece := await loop.sock_recv(sock, 65536 if hurry.is_set() else 1):
            got += piece
            if not hurry.is_set():
                await asyncio.wait([asyncio.ensure_future(hurry.wait())], timeout=1)
        sock.close()
        return bytes(got)

    return hurry, asyncio.create_task(read())


@pytest.mark.long
@pytest.mark.parametrize("policy", ["cut", pytest.param("keep", marks=pytest.mark.long)])
def test_case_24_a_client_that_reads_a_byte_per_second(launch, policy):
    async def story(server: Process) -> None:
        expected = await quiet(server)
        before = server.memory_mib()
        slow = [await trickle(server) for _ in range(SLOW_READERS[policy])]
        for _ in range(ROUNDS):  # nobody else notices
            assert await asyncio.gather(*(answer(server, witness(i)) for i in range(WITNESSES))) == expected
        metrics = await idle(server)  # also not the engine: it is done with them, though they have read next to nothing
        assert metrics.get('tailrace_request_aborted_total{cause="slow reader"}', 0) == (
            SLOW_READERS[policy] if policy == "cut" else 0
        )
        # a few megabytes each in the kernel's buffers are not ours; what we hold is bounded
        assert server.memory_mib() - before < SLOW_READERS[policy] * (8 if policy == "cut" else 60)
        for hurry, _ in slow:
            hurry.set()
        for _, task in slow:
            said = data(await task)
            assert said[-1] == "[DONE]"
            choices = [choice for event in said[:-1] for choice in json.loads(event)["choices"]]
            ends = [(c["finish_reason"], c["stop_reason"]) for c in choices if c["finish_reason"]]
            assert ends == [("abort", "slow reader") if policy == "cut" else ("length", None)] * SLOW["n"]
            text = "".join(choice["text"] for choice in choices)
            assert len(text) == sum(len(c["logprobs"]["tokens"]) for c in choices if c["logprobs"])
            assert (len(text) == SLOW["n"] * SLOW["max_tokens"]) == (policy == "keep")

    with launch(**FAST, stream_buffer_kib=256, slow_readers=policy) as server:
        server.until(200)
        asyncio.run(story(server))


# ---- two thousand streams


@pytest.mark.long
@pytest.mark.parametrize("streams", [500, 2000])
def test_case_27_two_thousand_open_streams(launch, streams):
    body = {
        "prompt": "many",
        "allowed_token_ids": LETTERS,
        "seed": 5,
        "stream": True,
        "max_tokens": 24,
        "ignore_eos": True,
    }

    async def stream(server: Process) -> str:
        reader, writer = await post(server, body)
        said = data(await reader.read())
        writer.close()
        assert said[-1] == "[DONE]"
        return "".join(choice["text"] for event in said[:-1] for choice in json.loads(event)["choices"])

    async def story(server: Process) -> None:
        expected, [text] = await quiet(server), {await stream(server)}
        assert len(text) == 24
        opened = [asyncio.create_task(stream(server)) for _ in range(streams)]
        until, held = time.monotonic() + 300, 0.0
        while held < streams / 2:  # so many are open at once that most must wait
            metrics = await asyncio.to_thread(server.metrics)
            held = metrics["tailrace_num_requests_waiting"] + metrics["tailrace_num_requests_running"]
            assert time.monotonic() < until, held
        assert await asyncio.to_thread(server.health) == 200
        witnesses = asyncio.gather(*(answer(server, witness(i) | {"priority": -1}) for i in range(WITNESSES)))
        assert set(await asyncio.gather(*opened)) == {text}
        assert await witnesses == expected
        assert (await idle(server))['tailrace_request_finished_total{finish_reason="length"}'] >= streams

    with launch(**FAST | {"model": "scripted:next:50"}) as server:  # slow enough that they gather
        server.until(200)
        asyncio.run(story(server))


# ---- a storm of aborts


class Storm:
    """Requests that are left at random moments, and what became of them."""

    def __init__(self, server: Process, seed: int) -> None:
        self.server, self.rng = server, random.Random(seed)
        self.ways: Counter[str] = Counter()

    def body(self) -> dict:
        rng = self.rng
        return {
            "prompt": rng.choice(["a", "b" * 700, ["x", "yz", "w" * 300], [1, 2, 3]]),
            "stream": rng.random() < 0.7,
            "n": rng.choice([1, 1, 1, 4]),
            "seed": rng.randrange(99),
            "temperature": rng.choice([0, 1.0]),
            "ignore_eos": True,
            "max_tokens": rng.choice([1, 5, 40, 3000]),
            "allowed_token_ids": LETTERS,
            "stop": rng.choice([None, "zz", ["qqq", "ab"]]),
            "logprobs": rng.choice([None, None, 3]),
            "priority": rng.choice([0, 0, 1]),
            "request_id": rng.choice([None, f"same{rng.randrange(5)}"]),
            "prompt_logprobs": rng.choice([None, None, None, 1]),
            "deadline_s": rng.choice([None, None, None, 0.05]),
        }

    async def one(self) -> None:
        """Before it is scheduled, in prefill, between chunks, after the finish; by a reset, an orderly end, or a cancel
        by name."""
        rng, body = self.rng, self.body()
        how = rng.choice(["reset", "close", "cancel", "again"])
        reader, writer = await post(self.server, body)
        try:
            async with asyncio.timeout(rng.choice([0, 0.001, 0.01, 0.1, 0.4])):
                while await reader.read(4096):
                    pass
                how = "finished"
        except (TimeoutError, ConnectionError):
            pass
        self.ways[how] += 1
        if how == "cancel" and body["request_id"]:
            cancel, gone = await asyncio.open_connection("127.0.0.1", int(self.server.url.rsplit(":", 1)[1]))
            gone.write(
                f"DELETE /v1/requests/{body['request_id']} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()  # noqa: E501, one text
            )
            await cancel.read()
            gone.close()
        if how == "again":  # the same id at once again, while the old one ends
            _, second = await post(self.server, body)
            second.transport.abort()
        writer.transport.abort() if how == "reset" else writer.close()

    async def rage(self, count: int, at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)

        async def gated() -> None:
            async with gate:
                await self.one()

        await asyncio.gather(*(gated() for _ in range(count)))


@pytest.mark.parametrize(
    ("front_ends", "count"),
    [(2, 400), *(pytest.param(front_ends, 10_000, marks=pytest.mark.long) for front_ends in (1, 2))],
)
def test_a_storm_of_aborts_leaves_nothing_and_nobody_notices(launch, front_ends, count):
    async def story(server: Process) -> None:
        expected = await quiet(server)
        await Storm(server, 1).rage(100, 50)  # what the first requests leave in caches stays
        await idle(server)
        before = server.memory_mib()
        storm = Storm(server, 2)
        raging = asyncio.create_task(storm.rage(count, 60))
        rounds = 0
        while not raging.done() or not rounds:
            assert await asyncio.gather(*(answer(server, witness(i)) for i in range(WITNESSES))) == expected
            rounds += 1
        await raging
        metrics = await idle(server)
        assert metrics["tailrace_front_ends"] == front_ends
        assert min(storm.ways[how] for how in ("reset", "close", "cancel", "again")) > count / 50, storm.ways
        assert await quiet(server) == expected
        assert server.memory_mib() - before < 60
        assert not [name for name in metrics if name.startswith("tailrace_request_failed_total")]

    with launch(**FAST, front_ends=front_ends) as server:
        server.until(200)
        asyncio.run(story(server))
