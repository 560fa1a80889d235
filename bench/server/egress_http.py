"""Whole front ends over HTTP, ours and baseline.py: the same scripted engine, client and requests.

Measures tokens per second of wall time and of the front end's own processor time, and how long /health takes meanwhile.
Both must answer with the same text. The client is a worker (see harness.Worker) that only collects bytes while the
clock runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.lib.harness import Worker, percentile
from bench.lib.server import HOST, running

FRONT_ENDS = {"ours": ("tailrace.cli", "serve", "--log-level", "warning"), "baseline": ("bench.server.baseline",)}
GOAL = 4.0  # ours / baseline, per second of processor time
WARM_UP_TOKENS = 16
PROMPT_TOKENS = 64  # at most, template and all
HEALTH_EVERY_S = 0.05


class EgressCase(NamedTuple):
    """step_ms: what a step of the model takes besides sampling. top: logprobs; None: none are asked for."""

    name: str
    step_ms: float
    top: int | None


CASES = (
    EgressCase("saturated", 0.0, None),
    EgressCase("saturated, 5 logprobs", 0.0, 5),
    EgressCase("a step every 2 ms", 2.0, None),
)


def over_http(streams: int, tokens: int, stops: tuple[str, ...], front_ends: int = 1) -> list[dict[str, Any]]:
    """A row per case and front end. front_ends: if more than one, also a row of ours with so many processes. Their
    processor time can't be told from their engine's, so that row is per second of wall time only.

    Raises:
        RuntimeError: a front end did not start or refused, or the texts differ.
    """
    found = []
    counts = dict.fromkeys(FRONT_ENDS, 1) | ({f"ours × {front_ends}": front_ends} if front_ends > 1 else {})
    for case in CASES:
        sides = {name: measure(name, count, case, streams, tokens, stops) for name, count in counts.items()}
        if len({side.pop("text") for side in sides.values()}) > 1:
            raise RuntimeError(f"{case.name}: the front ends answer with different texts")
        rates = {name: side["tok/s per core"] for name, side in sides.items()}
        for name, side in sides.items():
            ratio = (
                {"×": rates["ours"] / rates["baseline"], "goal": GOAL} if name == "ours" else {"×": "-", "goal": "-"}
            )
            if counts[name] > 1:
                side["tok/s per core"] = "-"
            found.append({"front end": name, "case": case.name, **side, **ratio})
    return found


def measure(
    name: str, count: int, case: EgressCase, streams: int, tokens: int, stops: tuple[str, ...]
) -> dict[str, Any]:
    """One front end of `count` processes in one case, and a hash of its answers."""
    module = (*FRONT_ENDS[name.partition(" ")[0]], *(("--front-ends", str(count)) if count > 1 else ()))
    with (
        serving(module, streams, tokens, case.step_ms) as (port, pid),
        Worker("bench.server.egress_http", threads=1) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        body = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
            "ignore_eos": True,
            "stop": stops,
        }
        if case.top is not None:
            body |= {"logprobs": True, "top_logprobs": case.top}
        question = {"port": port, "streams": streams, "body": body}
        client.ask(question | {"tokens": WARM_UP_TOKENS})
        done = threading.Event()
        health = pool.submit(health_times, port, done)
        before = cpu_seconds(pid)
        try:
            answer = client.ask(question | {"tokens": tokens})
        finally:
            done.set()
        used = cpu_seconds(pid) - before
        latencies = health.result()
    return {
        "tok/s": streams * tokens / answer["wall_s"],
        "tok/s per core": streams * tokens / used,
        "tok/event": streams * tokens / answer["events"],
        "/health p50 ms": percentile(latencies, 50) * 1e3,
        "p99 ms": percentile(latencies, 99) * 1e3,
        "text": answer["text"],
    }


@contextlib.contextmanager
def serving(module: tuple[str, ...], streams: int, tokens: int, step_ms: float) -> Iterator[tuple[int, int]]:
    """A front end with a scripted engine: its port and its process id."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    blocks = streams * ((PROMPT_TOKENS + tokens) // 16 + 1)
    command = [
        sys.executable,
        "-m",
        *module,
        "--model",
        f"scripted:next:{step_ms}",
        "--host",
        HOST,
        "--port",
        str(port),
        "--threads",
        "1",
        "--max-num-seqs",
        str(streams),
        "--max-num-batched-tokens",
        str(streams * 16),
        "--num-blocks",
        str(blocks),
    ]
    with running(command, port) as process:
        yield port, process.pid


def cpu_seconds(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def health_times(port: int, done: threading.Event) -> list[float]:
    """How long /health takes, again and again."""
    times = []
    while not done.wait(HEALTH_EVERY_S):
        begin = time.perf_counter()
        urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=30).read()
        times.append(time.perf_counter() - begin)
    return times


# ---- the client


class Answer(asyncio.Protocol):
    """One request: send it, and collect what comes until the server closes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.pieces: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


def request(port: int, body: dict[str, Any]) -> bytes:
    """A request for a chat completion, as bytes."""
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(payload)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + payload


def read(whole: bytes, tokens: int) -> tuple[str, int]:
    """The text of an answer, and the number of events with choices in it.

    Raises:
        RuntimeError: the server refused or broke off, or the number of tokens is wrong.
    """
    if not whole.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answers {whole[:500]!r}")
    text, count, usage = [], 0, None
    for line in whole.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                count += 1
                text.append(choice["delta"].get("content") or "")
    if usage is None or usage["completion_tokens"] != tokens or b"data: [DONE]" not in whole:
        raise RuntimeError(f"expected {tokens} tokens and [DONE], got usage {usage}")
    return "".join(text), count


async def ask(question: dict[str, Any]) -> dict[str, Any]:
    """All streams at once."""
    loop = asyncio.get_running_loop()
    answers = []
    begin = time.perf_counter()
    for i in range(question["streams"]):
        messages = [{"role": "user", "content": f"Question {i}"}]
        asked = request(question["port"], question["body"] | {"messages": messages, "max_tokens": question["tokens"]})
        answers.append((await loop.create_connection(lambda asked=asked: Answer(asked), HOST, question["port"]))[1])
    await asyncio.gather(*(answer.done for answer in answers))
    wall_s = time.perf_counter() - begin
    texts, counts = zip(*(read(b"".join(answer.pieces), question["tokens"]) for answer in answers), strict=True)
    return {"wall_s": wall_s, "events": sum(counts), "text": hashlib.sha256(json.dumps(texts).encode()).hexdigest()}


def main() -> None:
    """Answer questions until stdin closes."""
    for line in sys.stdin:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(ask(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
