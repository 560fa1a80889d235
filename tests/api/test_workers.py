"""Further front ends that can't start, or end again and again: bounded retries at the start, longer waits later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.api import workers
from tailrace.api.disconnect import cancel_all
from tailrace.api.workers import Workers, WorkerStart
from tailrace.config import ServerConfig


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.fileno()


class Group:
    """One worker that is a shell script. `reasons`: why it can't start at all, once known."""

    def __init__(self, folder: Path, script: str, listening: int, monkeypatch: pytest.MonkeyPatch, timeout_s: float):
        monkeypatch.setattr(workers, "POLL_S", 0.01)
        monkeypatch.setattr(workers, "REPLACE_AFTER_S", 0.01)
        (folder / "python").write_text(f"#!/bin/sh\necho >> {folder}/runs\n{script}\n")
        (folder / "python").chmod(0o700)
        monkeypatch.setattr("tailrace.base.python_command.sys.executable", str(folder / "python"))
        self.folder, self.reasons = folder, asyncio.Queue[str]()
        start = WorkerStart(ServerConfig(front_ends=2, start_timeout_s=timeout_s), [], named=False, socket=listening)
        self.workers = Workers(1, start)
        self.workers.on_failed = self.reasons.put_nowait
        self.workers.on_launched("m", "ipc://nowhere")
        self.watch = asyncio.create_task(self.workers.watch())

    def count_runs(self) -> int:
        path = self.folder / "runs"
        return path.read_text().count("\n") if path.exists() else 0

    async def end(self) -> None:
        await cancel_all(self.watch)
        await asyncio.to_thread(self.workers.stop, 0, lambda: True)


@pytest.mark.parametrize(
    ("script", "timeout_s", "reason", "runs"),
    [
        ('echo \'{"code":"engine_error","message":"no memory"}\'; exit 1', 300, "no memory", workers.MAX_FAILURES),
        ("exit 3", 300, "exit code 3", workers.MAX_FAILURES),
        ("kill -9 $$", 300, "exit code -9", workers.MAX_FAILURES),
        ("echo nonsense; exit 1", 300, "exit code 1", workers.MAX_FAILURES),
        ("exec sleep 600", 0.2, "it was not ready within 0.2 s", workers.MAX_FAILURES),
    ],
)
async def test_worker_that_can_not_start_is_not_tried_for_ever(
    tmp_path, monkeypatch, listening, script: str, timeout_s: float, reason: str, runs: int
):
    group = Group(tmp_path, script, listening, monkeypatch, timeout_s)
    assert await asyncio.wait_for(group.reasons.get(), 300) == reason
    await asyncio.sleep(0.1)
    assert group.count_runs() == runs
    await group.end()


async def test_worker_that_has_served_is_replaced_after_longer_and_longer_waits(
    tmp_path, monkeypatch, listening, caplog
):
    group = Group(tmp_path, "echo '{\"started\":true}'; exit 3", listening, monkeypatch, 300)
    while group.count_runs() < workers.MAX_FAILURES + 2:
        await asyncio.sleep(0.01)
    await group.end()
    assert group.reasons.empty()
    waits = [line.rsplit(" in ", 1)[1] for line in caplog.messages]
    assert waits[:4] == ["0.01 s", "0.02 s", "0.04 s", "0.08 s"]
    assert "died (exit code 3) and is replaced" in caplog.text
