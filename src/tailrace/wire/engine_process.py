"""Starts the engine's process, watches it, and reads why it died. It leaves no process and no folder behind.

The child gets its settings as one line of JSON on stdin, which then stays open. However this process dies, the pipe
closes and the engine ends itself. The child's stdout is a status pipe: a line of JSON {code, message} says why it
failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tailrace.base.logs import MODEL_VARIABLE
from tailrace.base.reporting_child import make_reporting_command
from tailrace.config import EngineConfig
from tailrace.errors import BY_CODE, EngineDeadError, TailraceError
from tailrace.wire.messages import AdapterChange, ModelInfo
from tailrace.wire.sockets import Address

KILL_AFTER_S = 3.0  # between SIGTERM and SIGKILL


class EngineHandle(Protocol):
    """An engine as a client sees it: its own process, or one that another process owns (wire/remote_engine.py).

    asleep: the engine's model, if the owner lets the engine sleep. failure: why the owner could not load the engine.
    """

    asleep: ModelInfo | None
    failure: TailraceError | None

    @property
    def url(self) -> str:
        """The address of its socket."""
        ...

    @property
    def pid(self) -> int: ...
    @property
    def ended_well(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def error(self) -> TailraceError: ...
    def stop(self) -> None: ...


class EngineProcess:
    """A running (or dead) engine process at `url`.

    Args:
        label: the engine's name in its log lines. changes: of the adapters, before the engine is ready.
    """

    asleep: ModelInfo | None = None
    failure: TailraceError | None = None

    def __init__(self, config: EngineConfig, label: str = "", changes: Sequence[AdapterChange] = ()) -> None:
        self.address = Address()
        # libgomp's threads would spin for milliseconds after each of torch's parallel regions, on our kernels' cores
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, **({MODEL_VARIABLE: label} if label else {})}
        try:
            self.process = subprocess.Popen(
                make_reporting_command("tailrace.engine.process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal goes to the front end alone, which ends the engine
            )
        except BaseException:
            self.address.remove()
            raise
        assert self.process.stdin is not None
        line = msgspec.json.encode({"url": self.address.url, "config": config, "changes": list(changes)}) + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the engine died already: `error` says why
            self.process.stdin.write(line)
            self.process.stdin.flush()

    @property
    def url(self) -> str:
        """The address of its socket."""
        return self.address.url

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self.process.pid

    @property
    def ended_well(self) -> bool:
        """True if the process has ended as it was asked to, so its last message is Drained."""
        return self.process.poll() == 0

    @property
    def alive(self) -> bool:
        """True if the process has not exited."""
        return self.process.poll() is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once the process has exited."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def error(self) -> TailraceError:
        """Return why the engine is dead: its own report, or its exit code."""
        code = self.process.wait()
        words = b""
        if self.process.stdout is not None and not self.process.stdout.closed:
            os.set_blocking(self.process.stdout.fileno(), False)
            words = self.process.stdout.read() or b""
        try:
            report = json.loads(words.splitlines()[-1])
            return BY_CODE.get(report["code"], EngineDeadError)(report["message"])
        except (IndexError, ValueError, KeyError):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return EngineDeadError(f"the engine process died ({how})")

    def stop(self) -> None:
        """End the process, by force if it takes too long, and delete its address. Idempotent."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if self.alive:
            self.process.terminate()
            if not self.wait(KILL_AFTER_S):
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.address.remove()
