"""An engine that does not move is seen from outside, whoever holds it, and is ready again once it moves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from api.processes import Process, launched
from tailrace.wire import pulse as pulse_module
from tailrace.wire.pulse import LOADING, Pulse, PulseReader


def engine_of(server: Process) -> int:
    return next(pid for pid in server.children() if b"engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes())


def conditions(server: Process, times: int = 8) -> set[tuple[int, str]]:
    """What /health says; each time on a connection of its own, so that every front end is asked."""
    found = set()
    for _ in range(times):
        server.http.close()
        server.http = type(server.http)(base_url=server.url, timeout=300)
        answer = server.http.get("/health")
        found.add((answer.status_code, answer.json()["status"]))
    return found


@pytest.mark.long
@pytest.mark.parametrize("front_ends", [1, 2])
def test_a_stopped_engine_is_stalled_until_it_goes_on(tmp_path, free_port, capfd, front_ends):
    with launched(tmp_path, free_port(), scheduler={"stall_s": 1.0}, front_ends=front_ends) as server:
        server.until(200)
        reader = server.stream(max_tokens=300)
        engine = engine_of(server)
        os.kill(engine, signal.SIGSTOP)
        try:
            server.until(503)
            time.sleep(1.0)
            assert conditions(server) == {(503, "stalled")}
            answer = server.http.get("/health").json()
            assert answer["seconds"] > 1.0
            assert answer["part"]
            metrics = server.metrics()
            assert metrics["tailrace_engine_stalls_total"] >= 1
            assert metrics["tailrace_engine_ready"] == 0
        finally:
            os.kill(engine, signal.SIGCONT)
        server.until(200)
        assert conditions(server) == {(200, "ready")}
        assert reader.last()["choices"][0]["finish_reason"] == "length"
        # also where it has nothing to do
        os.kill(engine, signal.SIGSTOP)
        try:
            server.until(503)
        finally:
            os.kill(engine, signal.SIGCONT)
        server.until(200)
    said = capfd.readouterr().err
    assert "the engine has stalled" in said
    assert "the engine moves again" in said


def test_a_step_that_hangs_is_told_with_its_part_its_requests_and_the_stack(tmp_path, free_port, capfd):
    model = "scripted:count:1500"
    with launched(tmp_path, free_port(), model, scheduler={"stall_s": 0.5}) as server:
        server.until(200)
        answer = server.http.post(
            "/v1/completions",
            json={"prompt": [97], "max_tokens": 3, "ignore_eos": True},
            headers={"x-request-id": "slow-one"},
        )
        assert answer.status_code == 200  # it goes on, and nobody is hurt
        assert server.metrics()["tailrace_engine_stalls_total"] >= 1
    said = capfd.readouterr().err
    assert "in part forward" in said
    assert "scripted.py" in said, "the stack is missing"
    line = next(line for line in said.splitlines() if "so far; in part" in line)
    assert "requests: none" not in line


def test_a_pulse_is_seen_from_outside(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pulse_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    url = f"ipc://{tmp_path}/engine"
    reader = PulseReader(url)
    assert reader.stall() is None, "there is no engine yet"
    assert reader.loading() == ""
    pulse = Pulse(url, 0.05)
    assert reader.stall() is None, "it has not begun"
    for part in LOADING:
        pulse.enter(part)
        assert reader.loading() == part
    pulse.enter("between")
    assert reader.loading() == ""
    pulse.beat(7)
    assert reader.stall() is None
    before = pulse.enter("mask")
    now[0] += 0.06
    stall = reader.stall()
    assert stall is not None
    assert (stall.part, stall.step) == ("mask", 7)
    assert stall.seconds > 0.05
    pulse.enter(before)
    pulse.beat(8)
    assert reader.stall() is None
    assert Pulse(url, 0.0).stall() is None


def test_a_call_that_holds_the_interpreter_is_told_as_well(tmp_path):
    code = (
        "import ctypes, sys; from tailrace.engine.watchdog import Watchdog; from tailrace.wire.pulse import Pulse\n"
        f"pulse = Pulse('ipc://{tmp_path}/engine', 0.4); pulse.beat(3); Watchdog(pulse, 0.4, lambda: ['r'])\n"
        "def stuck():\n    import time; time.sleep(0.1); ctypes.PyDLL(None).usleep(1_200_000)\n"
        "stuck()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "in stuck" in done.stderr
