"""The whole server as a process, with its engine process: drain, signals, the engine's death, nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from api.processes import ENDLESS, gone

PROMPT_TOKENS = "tailrace_prompt_tokens_total"

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)


def test_drain_lets_finish_what_can_and_ends_the_rest(launch):
    with launch(drain_timeout_s=4) as server:
        server.until(200)
        [engine] = server.children()
        reader = server.stream()
        short: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: short.append(
                server.http.post("/v1/completions", json=ENDLESS | {"stream": False, "max_tokens": 40})
            )
        )
        asking.start()
        until = time.monotonic() + 300
        while server.metrics()[PROMPT_TOKENS] < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        server.send(signal.SIGTERM)
        asking.join(300)
        assert short[0].json()["usage"]["completion_tokens"] == 40
        error = reader.last()["error"]
        assert (error["code"], error["message"]) == ("not_ready", "the server is shutting down")
        assert server.process.wait(300) == 0
        assert gone(engine)
        assert server.health() == 0


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP ends a server that is started here, also if the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_does_not_wait(launch, first, capfd, hangup):
    with launch(drain_timeout_s=3600) as server:
        server.until(200)
        [engine] = server.children()
        reader = server.stream()
        server.send(first)
        server.leaves(200)
        assert server.process.poll() is None
        server.send(signal.SIGINT)
        assert server.process.wait(300) == 0
        assert gone(engine)
        error = reader.last()["error"]
        assert (error["code"], error["message"]) == ("not_ready", "the server is shutting down")
    assert "Traceback" not in capfd.readouterr().err


def test_no_header_makes_a_client_another_user(launch, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn reads it
    with launch() as server:
        server.until(200)
        server.stream(request_id="mine")
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=server.url, transport=elsewhere, timeout=300) as other:
            forged = other.delete("/v1/requests/mine", headers={"x-forwarded-for": "127.0.0.1"})
        assert forged.status_code == 404
        own = server.http.delete("/v1/requests/mine", headers={"x-forwarded-for": "127.0.0.2"})
        assert own.status_code == 200


@pytest.mark.long
def test_the_engines_death_ends_every_stream_and_the_server(launch):
    with launch() as server:
        server.until(200)
        [engine] = server.children()
        readers = [server.stream() for _ in range(8)]
        os.kill(engine, signal.SIGKILL)
        for reader in readers:
            error = reader.last()["error"]
            assert error["code"] == "engine_dead"
            assert "signal 9" in error["message"]
        assert server.process.wait(300) == 1


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
        until = time.monotonic() + 300
        while (status := server.health()) == 0:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert status == 503
        [engine] = server.children()
        server.send(signal.SIGTERM)
        assert server.process.wait(300) == 0
        assert gone(engine)


@pytest.mark.long
def test_a_port_in_use_is_an_error(launch, capfd):
    with launch() as first:
        first.until(200)
        with launch(port=int(first.url.rsplit(":", 1)[1])) as second:
            assert second.process.wait(300) not in (0, None)
            assert "is taken; `ss -ltnp 'sport = :" in capfd.readouterr().err
        assert first.health() == 200
