"""A whole server as a process, for tests that kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from api.harness import make_tokenizer
from tailrace.text.templates.processes import WORKER

MAIN = """
import sys, msgspec
from tailrace.api.serve import serve_models
from tailrace.api.workers import ServedModel
from tailrace.base.config_sources import load_config
from tailrace.text.tokenizer import Tokenizer
config = load_config(msgspec.json.decode(sys.argv[1]), env={})
models = [ServedModel(one.engine, sys.argv[2]) for one in config.each()]
sys.exit(serve_models(config.server, models, [Tokenizer.load(sys.argv[2]) for _ in models], bool(config.models)))
"""
ENDLESS = {"prompt": [97], "allowed_token_ids": [97], "stream": True, "temperature": 0}  # 4095 tokens, 20 s


class Process:
    """A running server."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
        self.http = httpx.Client(base_url=url, timeout=300)

    def children(self) -> list[int]:
        """Its engine, and its further front ends, without the process for templates."""
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [child for child in children if WORKER not in Path(f"/proc/{child}/cmdline").read_text()]

    def memory_mib(self) -> float:
        """What the first process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def metrics(self) -> dict[str, float]:
        """All samples, by name and labels as they are written."""
        lines = self.http.get("/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def health(self) -> int:
        """HTTP status; 0 if nobody listens."""
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return 0

    def until(self, status: int, timeout_s: float = 300) -> None:
        """Wait for a status of /health."""
        until = time.monotonic() + timeout_s
        while self.health() != status:
            assert time.monotonic() < until, f"health never was {status}"
            time.sleep(0.05)

    def leaves(self, status: int) -> None:
        """Wait until /health has this status no more, or nobody listens."""
        until = time.monotonic() + 300
        while self.health() == status:
            assert time.monotonic() < until, f"health stays {status}"
            time.sleep(0.05)

    def send(self, sig: int) -> None:
        """A signal."""
        self.process.send_signal(sig)

    def stream(self, **fields) -> Reader:
        """An endless answer that is being read."""
        return Reader(self.url, ENDLESS | fields)


class Reader(threading.Thread):
    """Reads an endless answer; `events` with the time each came."""

    def __init__(self, url: str, body: dict) -> None:
        super().__init__(daemon=True)
        self._url, self._body = url, body
        self.events: list[tuple[float, str]] = []
        self.begun = threading.Event()
        self.start()
        assert self.begun.wait(300)

    def run(self) -> None:
        with (
            suppress(httpx.RemoteProtocolError),  # its front end was killed
            httpx.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=300) as answer,
        ):
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line:
                    self.events.append((time.monotonic(), line.removeprefix("data: ")))
                    self.begun.set()

    def whole(self) -> bool:
        """It came to its own end, all 4095 tokens."""
        return any('"length"' in event for _, event in self.events)

    def last(self, timeout_s: float = 300) -> dict:
        """The last event, after the stream has ended."""
        self.join(timeout_s)
        assert not self.is_alive()
        final = [event for _, event in self.events if event != "[DONE]"][-1]
        return json.loads(final)


def gone(pid: int, timeout_s: float = 300) -> bool:
    """The process ends within the time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


@contextmanager
def launched(
    folder: Path,
    port: int,
    model: str = "scripted:count:5",
    scheduler: dict | None = None,
    num_blocks: int = 2048,
    models: dict[str, str] | None = None,
    **server,
) -> Iterator[Process]:
    """A server with an endless model, which says a token in 5 ms. models: several, by name, in its place."""
    make_tokenizer(folder)
    config = {
        "model": {} if models else {"model": model, "name": "scripted"},
        "models": {name: {"model": {"model": script}} for name, script in (models or {}).items()},
        "cache": {"num_blocks": num_blocks},
        "scheduler": scheduler or {},
        "server": {"port": port} | server,
    }
    process = subprocess.Popen([sys.executable, "-c", MAIN, json.dumps(config), str(folder)])
    running = Process(f"http://127.0.0.1:{port}", process)
    try:
        yield running
    finally:
        running.http.close()
        process.kill()
        process.wait()
