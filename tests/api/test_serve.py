"""The whole server as a process, with its engine process: drain, signals, the engine's death, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from api.harness import make_tokenizer

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

MAIN = """
import sys, msgspec
from tailrace.api.serve import serve
from tailrace.config import Config
from tailrace.text.tokenizer import Tokenizer
sys.exit(serve(msgspec.json.decode(sys.argv[1], type=Config), Tokenizer.load(sys.argv[2])))
"""
ENDLESS = {"prompt": [97], "allowed_token_ids": [97], "stream": True, "temperature": 0}  # 4095 tokens, 20 s


class Process:
    """A running server."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
        self.http = httpx.Client(base_url=url, timeout=30)

    def children(self) -> list[int]:
        """Its engine (and nothing else)."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def health(self) -> int:
        """HTTP status; 0 if nobody listens."""
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return 0

    def until(self, status: int, timeout_s: float = 60) -> None:
        """Wait for a status of /health."""
        until = time.monotonic() + timeout_s
        while self.health() != status:
            assert time.monotonic() < until, f"health never was {status}"
            time.sleep(0.05)

    def send(self, sig: int) -> None:
        """A signal."""
        self.process.send_signal(sig)

    def stream(self) -> Reader:
        """An endless answer that is being read."""
        return Reader(self.url)


class Reader(threading.Thread):
    """Reads an endless answer; `events` with the time each came."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.events: list[tuple[float, str]] = []
        self.begun = threading.Event()
        self.start()
        assert self.begun.wait(20)

    def run(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=ENDLESS, timeout=60) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line:
                    self.events.append((time.monotonic(), line.removeprefix("data: ")))
                    self.begun.set()

    def last(self, timeout_s: float = 30) -> dict:
        """The last event, after the stream has ended."""
        self.join(timeout_s)
        assert not self.is_alive()
        return json.loads(self.events[-1][1])


def gone(pid: int, timeout_s: float = 5) -> bool:
    """The process ends within the time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


@pytest.fixture
def launch(tmp_path, free_port):
    """A function that runs a server: with launch(settings) as process."""
    make_tokenizer(tmp_path)

    @contextmanager
    def run(port: int = 0, **server) -> Iterator[Process]:
        port = port or free_port()
        config = {
            "model": {"model": "scripted:count:5", "name": "scripted"},
            "cache": {"num_blocks": 2048},
            "server": {"port": port} | server,
        }
        process = subprocess.Popen([sys.executable, "-c", MAIN, json.dumps(config), str(tmp_path)])
        running = Process(f"http://127.0.0.1:{port}", process)
        try:
            yield running
        finally:
            running.http.close()
            process.kill()
            process.wait()

    return run


def test_drain_lets_finish_what_can_and_ends_the_rest(launch):
    with launch(drain_timeout_s=4) as server:
        server.until(200)
        [engine] = server.children()
        reader = server.stream()
        short: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: short.append(
                server.http.post("/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 100})
            )
        )
        asking.start()
        time.sleep(0.2)
        server.send(signal.SIGTERM)
        asking.join(20)
        assert short[0].json()["usage"]["completion_tokens"] == 100
        error = reader.last()["error"]
        assert (error["code"], error["message"]) == ("not_ready", "the server is shutting down")
        assert server.process.wait(20) == 0
        assert gone(engine)
        assert server.health() == 0


def test_a_second_signal_does_not_wait(launch):
    with launch(drain_timeout_s=60) as server:
        server.until(200)
        [engine] = server.children()
        reader = server.stream()
        server.send(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.send(signal.SIGINT)
        assert server.process.wait(15) == 0
        assert gone(engine)
        reader.join(10)
        assert not reader.is_alive()


def test_the_engines_death_ends_every_stream_and_the_server(launch):
    with launch() as server:
        server.until(200)
        [engine] = server.children()
        readers = [server.stream() for _ in range(8)]
        killed_s = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        for reader in readers:
            error = reader.last()["error"]
            assert error["code"] == "engine_dead"
            assert "signal 9" in error["message"]
            assert reader.events[-1][0] - killed_s < 1
        assert server.process.wait(20) == 1


def test_the_engines_death_and_its_restart(launch):
    with launch(on_engine_death="restart") as server:
        server.until(200)
        [engine] = server.children()
        reader = server.stream()
        os.kill(engine, signal.SIGKILL)
        assert reader.last()["error"]["code"] == "engine_dead"
        assert server.health() == 503
        server.until(200)
        [successor] = server.children()
        assert successor != engine
        answer = server.http.post("/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 5})
        assert answer.json()["choices"][0]["text"] == "aaaaa"


def test_it_listens_while_the_engine_starts_and_can_be_stopped_then(launch):
    with launch() as server:
        until = time.monotonic() + 30
        while (status := server.health()) == 0:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert status == 503
        [engine] = server.children()
        server.send(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert gone(engine)


def test_a_port_in_use_is_an_error(launch):
    with launch() as first:
        first.until(200)
        with launch(port=int(first.url.rsplit(":", 1)[1])) as second:
            assert second.process.wait(30) not in (0, None)
        assert first.health() == 200
