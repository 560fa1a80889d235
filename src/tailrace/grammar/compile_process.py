"""The parent's side of a compiling process (worker.py): it starts the process, sends it grammars, and kills it if a
grammar takes too much."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import msgspec

from tailrace.config import GrammarConfig
from tailrace.errors import ParameterError
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import FINAL_OUTCOMES, LENGTH, MAX_TEXT, MIB, Reply, WorkerHello, frame_message
from tailrace.request.options import Grammar

START_S = 120.0  # for a process to import a library and read the vocabulary; takes seconds on an idle machine
EXIT_S = 5.0  # Most time between the close of a process's pipe and the end of the process.
CRASHES = (  # Signals that a process gets for its own faults.
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS),
    *(signal.SIGALRM, signal.SIGXCPU),
)
MAX_REPLY = 4 * MAX_TEXT + MIB  # bytes of a message; a character takes up to four


class ProcessLostError(Exception):
    """The process has ended, or was killed because it took too long.

    Attributes:
        begun: it had started on the grammar. killed: a signal ended it that no grammar causes, so it came from outside.
    """

    def __init__(self, timeout: bool) -> None:
        super().__init__()
        self.timeout, self.begun, self.killed = timeout, False, False


class GrammarTooBigError(ParameterError):
    """The grammar takes too much time or memory, and most likely would again."""


class CompileProcess:
    """One compiling process. It starts with the first job and is replaced at once after each loss. Used by one thread;
    any thread may call `kill` and `warm`."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._hello = WorkerHello(vocabulary, config.memory_mib, config.timeout_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    @property
    def warm(self) -> bool:
        """True if the process is running."""
        return self._process is not None

    def restart_process(self) -> None:
        """Start the next process after a loss, so that the next job need not wait for it."""
        if self._process is None:
            try:
                self._start_process()
            except (ProcessLostError, OSError):  # the next job will report it
                self._drop_process()

    def run(self, grammar: Grammar) -> Reply:
        """Compile a grammar.

        Raises:
            ProcessLostError: the process has ended or took too long.
            GrammarTooBigError: the answer exceeds MAX_REPLY.
        """
        if self._process is not None and self._process.poll() is not None:
            self._drop_process()  # it was killed from outside while it was idle
        used = self._process is not None
        try:
            return self._run_job(grammar)
        except ProcessLostError as error:
            # The grammar is tried again if the process was killed from outside: while it computed, or, if the process
            # had worked before, while it had not started on the grammar.
            if error.timeout or not (error.killed if error.begun else used):
                raise
        return self._run_job(grammar)

    def _run_job(self, grammar: Grammar) -> Reply:
        begun = False
        try:
            process = self._start_process()
            self._write_data(process, frame_message(grammar), START_S)
            self._read_reply(process, START_S)
            begun = True
            reply = self._read_reply(process, self._hello.timeout_s)
            if reply.outcome in FINAL_OUTCOMES:
                self._drop_process()
            return reply
        except (BrokenPipeError, ProcessLostError) as error:
            lost = ProcessLostError(isinstance(error, ProcessLostError) and error.timeout)
            lost.begun, lost.killed = begun, not lost.timeout and self._was_killed()
            self._drop_process()
            raise lost from None
        except BaseException:
            self._drop_process()  # its next message could be taken for another grammar's answer
            raise

    def kill_process(self) -> None:
        """End the process for good: a running job is lost, and no further one starts."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        self._drop_process()

    def _start_process(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise ProcessLostError(timeout=False)
            if self._process is not None:
                return self._process
            # one arena: each further one would count as 64 MiB of address space
            environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.grammar.worker"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            process = self._process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._write_data(process, frame_message(self._hello), START_S)
        return process

    def _write_data(self, process: subprocess.Popen[bytes], data: bytes, within_s: float) -> None:
        """Write without blocking for ever: a vocabulary exceeds a pipe's buffer, and the process may not be reading."""
        assert process.stdin is not None
        sink, until = process.stdin.fileno(), time.monotonic() + within_s
        poll = select.poll()
        poll.register(sink, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise ProcessLostError(timeout=True)
            with suppress(BlockingIOError):
                rest = rest[os.write(sink, rest) :]

    def _read_reply(self, process: subprocess.Popen[bytes], within_s: float) -> Reply:
        assert process.stdout is not None
        source, until = process.stdout.fileno(), time.monotonic() + within_s
        poll = select.poll()
        poll.register(source, select.POLLIN)

        def read_exactly(count: int) -> bytes:
            data = bytearray()
            while len(data) < count:
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise ProcessLostError(timeout=True)
                if not (part := os.read(source, min(count - len(data), MIB))):
                    raise ProcessLostError(timeout=False)
                data += part
            return bytes(data)

        (length,) = LENGTH.unpack(read_exactly(LENGTH.size))
        if length > MAX_REPLY:
            raise too_big(length)
        return msgspec.msgpack.decode(read_exactly(length), type=Reply)

    def _was_killed(self) -> bool:
        """Return whether a signal ended the process that no grammar causes. Waits for the end: its pipe has closed."""
        process = self._process
        if process is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_S)
        return process.returncode is not None and process.returncode < 0 and -process.returncode not in CRASHES

    def _drop_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # data that was never flushed
                        pipe.close()


def too_big(size: int) -> GrammarTooBigError:
    return GrammarTooBigError(f"grammar: too big, compiled it takes {size // MIB} MiB", "grammar")
