"""A `tailrace serve` process under measurement: its flags, its start and end, prompts for it, its metrics, and a
summary of its answers."""

from __future__ import annotations

import argparse
import contextlib
import pydoc_data.topics
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from bench.lib.harness import ROOT, cores, percentile
from tailrace.models import LocalModel
from tailrace.text.tokenizer import Tokenizer

HOST = "127.0.0.1"
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
WARM_UP_TOKENS = 8
START_TIMEOUT_S = 300.0
REST_S = 0.1


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that every benchmark of a server has: which model, in which arithmetic, and where the results go."""
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--threads", type=int, default=cores(), help="for arithmetic on the CPU")
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    parser.add_argument("--json", type=Path, help="write the results here too")


class Prompts:
    """Windows of real text, each handed out once, so that no two prompts share a prefix. When the text is used up it is
    read again, shifted by one token."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        text = "\n\n".join(pydoc_data.topics.topics.values())
        ids = tokenizer.encode(text, add_special_tokens=False)
        self.windows = (
            ids[start : start + length] for first in range(length) for start in range(first, len(ids) - length, length)
        )

    def take(self, count: int) -> list[list[int]]:
        """The next windows.

        Raises:
            ValueError: there are no more.
        """
        if len(taken := list(islice(self.windows, count))) < count:
            raise ValueError("the text is not long enough: ask for fewer rounds or streams")
        return taken


@contextlib.contextmanager
def serving(args: argparse.Namespace, local: LocalModel) -> Iterator[dict[str, Any]]:
    """`tailrace serve` on a free port, and the time from its start until it was ready, with a warm cache."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tailrace.cli",
        "serve",
        "--log-level",
        "warning",
        "--host",
        HOST,
        "--port",
        str(port),
        "--model",
        str(local.folder),
        "--served-model-name",
        local.name,
        "--dtype",
        args.dtype,
        "--threads",
        str(args.threads),
        *args.server_args.split(),
    ]
    start = time.perf_counter()
    with running(command, port):
        yield {"port": port, "start_up_s": time.perf_counter() - start}


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(
    command: list[str], port: int, *, env: dict[str, str] | None = None, output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, once it is ready. It ends with the block. output: where all that it prints goes; None: only
    its errors are seen.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    start, name = time.perf_counter(), " ".join(command[2:4])
    process = subprocess.Popen(command, stdout=output or subprocess.DEVNULL, stderr=output, cwd=ROOT, env=env)
    try:
        while not is_ready(port):
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}")
            if time.perf_counter() - start > START_TIMEOUT_S:
                raise RuntimeError(f"{name} was not ready within {START_TIMEOUT_S:g} s")
            time.sleep(0.02)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """True if the server answers /health with 200."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=1) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def counters(port: int) -> dict[str, float]:
    """All metrics of an idle server, by name with labels, without "tailrace_". The engine reports them a moment after
    the last answer, when it has nothing to do.

    Raises:
        RuntimeError: the server does not become idle.
    """
    for _ in range(200):
        time.sleep(REST_S)
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        parted = (text.rpartition(" ") for text in lines if text.startswith("tailrace_"))
        found = {name.removeprefix("tailrace_"): float(value) for name, _, value in parted}
        if not found["num_requests_running"] and not found["num_requests_waiting"]:
            return found
    raise RuntimeError("the server does not come to rest")


def change(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The difference of each counter."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput per round, and latencies over all rounds. Gaps are between events with text, nearly all of which hold
    one token."""
    requests = [request for answer in rounds for request in answer["requests"]]
    gaps = [b - a for request in requests for a, b in zip(request["arrivals"], request["arrivals"][1:], strict=False)]
    first = [request["arrivals"][0] for request in requests]
    rates = [answer["tokens"] / answer["wall_s"] for answer in rounds]
    return {
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_rounds": rates,
        "ttft_ms": {"p50": percentile(first, 50) * 1e3, "p95": percentile(first, 95) * 1e3},
        "itl_ms": {"p50": percentile(gaps, 50) * 1e3, "p99": percentile(gaps, 99) * 1e3},
    }
