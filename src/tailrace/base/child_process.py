"""The parent's side of a process behind pipes: `python -m MODULE`, which may be killed at any time.

framed_pipes.py has the messages' form, and the child's side. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

from tailrace.base.framed_pipes import frame_data, read_frame
from tailrace.base.python_command import make_python_command

EXIT_S = 5.0  # Most time between the close of a process's pipe or socket and the end of the process.
PIPE_BYTES = 1 << 20  # a message of fewer bytes is written at once, however late the process reads
CPU_CLOCK = 2  # Linux's name for a process's clock of processor time, beside the process's id
CRASHES = (  # Signals that a process gets for its own faults, and for exceeding its limits.
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS),
    *(signal.SIGALRM, signal.SIGXCPU, signal.SIGPROF),
)


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process so far; 0 if it has ended, and where the system does not tell (macOS)."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)  # as clock_getcpuclockid makes it
    except OSError:
        return 0.0


class ChildLostError(Exception):
    """The process has ended, or does not answer in time.

    Attributes:
        timeout: it does not answer in time.
    """

    def __init__(self, timeout: bool) -> None:
        super().__init__()
        self.timeout = timeout


class ChildProcess:
    """A running process. One thread at a time may use it; any thread may call `kill`.

    Args:
        module: the module that it runs. Modules in the working directory are not found.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            make_python_command(module),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # one arena: each further one would count as 64 MiB of address space
            env={**environment, "MALLOC_ARENA_MAX": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._sink, self._source = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._sink, False)
        for pipe in (self._sink, self._source):
            with suppress(OSError, AttributeError):  # not everywhere, and not beyond the user's share of pages
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, data: bytes, within_s: float) -> None:
        """Send a message without blocking for ever: it may exceed a pipe's buffer, and the process may not be reading.

        Raises:
            ChildLostError: see there.
        """
        rest, until_s = memoryview(frame_data(data)), time.monotonic() + within_s
        while rest:
            try:
                rest = rest[os.write(self._sink, rest) :]
            except BlockingIOError:
                self._wait(self._sink, select.POLLOUT, until_s)
            except BrokenPipeError:
                raise ChildLostError(timeout=False) from None

    def receive(self, max_bytes: int, within_s: float) -> bytes:
        """Return the next message.

        Raises:
            ChildLostError, MessageTooBigError: see there.
        """
        until_s = time.monotonic() + within_s

        def receive_part(size: int) -> bytes:
            self._wait(self._source, select.POLLIN, until_s)
            return os.read(self._source, size)

        if (data := read_frame(receive_part, max_bytes)) is None:
            raise ChildLostError(timeout=False)
        return data

    def _wait(self, file: int, event: int, until_s: float) -> None:
        poll = select.poll()
        poll.register(file, event)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            raise ChildLostError(timeout=True)

    def find_signal(self) -> int | None:
        """Return the signal that ended the process; None if it ended by itself, or has not ended. Waits for the end:
        its pipe has closed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        code = self._process.returncode
        return -code if code is not None and code < 0 else None

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self.kill()
        self._process.wait()
        self._close_pipes()

    def forget(self) -> None:
        """Drop the process of another process: this process has been forked, and the child is its parent's."""
        self._process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # data that was never flushed
                    pipe.close()
