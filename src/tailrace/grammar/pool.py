"""Threads that have grammars compiled, each by a process of its own that it kills when a grammar takes too much.

What comes back is loaded on the same thread. So the time and the memory of compiling are bounded for sure, those of loading only as far as
the process has shown them: loading repeats what it has done (llguidance), or reads what it has made (xgrammar).
"""

from __future__ import annotations

import logging
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from tailrace.config import GrammarConfig
from tailrace.errors import EngineError, ParameterError
from tailrace.grammar.backends import Backend, make, names
from tailrace.grammar.base import Compiled
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import LENGTH, MIB, Hello, Reply, Task, send
from tailrace.options import Grammar

START_S = 120.0  # for a process to import a library and take the vocabulary in: seconds on an idle machine
SHARE = 8  # what is kept of one grammar may take this part of the memory that compiling may
MAX_TEXT = 32 * MIB  # of a compiled grammar; loading holds the interpreter for milliseconds per MiB
log = logging.getLogger(__name__)


class LostError(Exception):
    """The process is gone, or was killed because it took too long."""

    def __init__(self, timeout: bool) -> None:
        super().__init__()
        self.timeout = timeout


class Worker:
    """One process, started at the first task and again after each loss. Used by one thread; `kill` by any."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._hello = Hello(vocabulary, config.memory_mib, config.timeout_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def run(self, task: Task) -> Reply:
        """Raises LostError."""
        if self._process is not None and self._process.poll() is not None:
            self._drop()  # it was killed from outside while it had nothing to do
        try:
            process = self._start()
            assert process.stdin is not None
            send(process.stdin, task)
            self._reply(process, START_S)
            return self._reply(process, self._hello.timeout_s)
        except (BrokenPipeError, LostError) as error:
            self._drop()
            raise LostError(isinstance(error, LostError) and error.timeout) from None

    def kill(self) -> None:
        """For good: a task that runs is lost, no further one is begun."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        self._drop()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise LostError(timeout=False)
            if self._process is not None:
                return self._process
            # one arena: each further one would count as 64 MiB of address space
            environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.grammar.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        assert self._process.stdin is not None
        send(self._process.stdin, self._hello)
        return self._process

    def _reply(self, process: subprocess.Popen[bytes], within_s: float) -> Reply:
        assert process.stdout is not None
        source, until = process.stdout.fileno(), time.monotonic() + within_s
        poll = select.poll()
        poll.register(source, select.POLLIN)

        def exactly(count: int) -> bytes:
            data = bytearray()
            while len(data) < count:
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise LostError(timeout=True)
                if not (part := os.read(source, min(count - len(data), MIB))):
                    raise LostError(timeout=False)
                data += part
            return bytes(data)

        return msgspec.msgpack.decode(exactly(LENGTH.unpack(exactly(LENGTH.size))[0]), type=Reply)

    def _drop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what was never flushed
                        pipe.close()


class Pool:
    """config.workers threads, started at the first grammar."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._vocabulary, self._config = vocabulary, config
        self._tasks: queue.SimpleQueue[tuple[Grammar, Callable[[Compiled | Exception, int], None]] | None] = (
            queue.SimpleQueue()
        )
        self._workers = [Worker(vocabulary, config) for _ in range(config.workers)]
        self._threads: list[threading.Thread] = []
        self._backends: dict[str, Future[Backend]] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def submit(self, grammar: Grammar, done: Callable[[Compiled | Exception, int], None]) -> None:
        """Have it compiled; `done` is called on a thread of the pool, once, with the outcome and the bytes it takes (about)."""
        with self._lock:
            if not self._threads and not self._closed:
                self._threads = [
                    threading.Thread(target=self._serve, args=(worker,), name=f"grammar-{i}", daemon=True)
                    for i, worker in enumerate(self._workers)
                ]
                for thread in self._threads:
                    thread.start()
            if not self._closed:
                self._tasks.put((grammar, done))
                return
        done(closed(), 0)

    def close(self) -> None:
        """Grammars that wait or are being compiled fail with EngineError. Returns when all threads and processes have ended."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for worker in self._workers:
            worker.kill()
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            thread.join()

    def _serve(self, worker: Worker) -> None:
        while (task := self._tasks.get()) is not None:
            grammar, done = task
            outcome, size = self._outcome(worker, grammar)
            done(outcome, size)
        worker.close()

    def _outcome(self, worker: Worker, grammar: Grammar) -> tuple[Compiled | Exception, int]:
        try:
            return self._compiled(worker, grammar)
        except (ParameterError, EngineError) as error:
            return error, 0
        except Exception as error:
            log.exception("a grammar could not be compiled")
            return EngineError(f"the grammar could not be compiled: {type(error).__name__}"), 0

    def _compiled(self, worker: Worker, grammar: Grammar) -> tuple[Compiled, int]:
        """With the first backend that can. Raises ParameterError: none can, or it takes too much."""
        complaints = []
        for name in names(grammar, self._config.backend):
            if self._closed:
                raise closed()
            try:
                reply = worker.run(Task(name, grammar))
            except LostError as lost:
                raise closed() if self._closed else self._too_much(name, lost.timeout) from None
            if reply.outcome == "invalid":
                raise ParameterError(reply.text, "grammar")
            if reply.outcome == "memory":
                raise self._too_much(name, timeout=False)
            if reply.outcome == "broken":
                raise EngineError(f"{name} could not compile the grammar: {reply.text}")
            if reply.outcome == "unsupported":
                complaints.append(f"{name}: {reply.text}")
                continue
            size = max(reply.resident, len(reply.text))
            if len(reply.text) > MAX_TEXT or size > self._config.memory_mib * MIB // SHARE:
                raise ParameterError(f"grammar: too big, compiled it takes {size // MIB} MiB ({name})", "grammar")
            return self._backend(name).load(reply.text), size
        raise ParameterError(f"grammar: invalid or not supported: {'; '.join(complaints)}", "grammar")

    def _too_much(self, name: str, timeout: bool) -> ParameterError:
        if timeout:
            return ParameterError(
                f"grammar: takes longer than {self._config.timeout_s:g} s to compile ({name})", "grammar"
            )
        text = f"takes more than {self._config.memory_mib} MiB to compile, or breaks the compiler"
        return ParameterError(f"grammar: {text} ({name})", "grammar")

    def _backend(self, name: str) -> Backend:
        """In this process; made once, by the thread that needs it first."""
        with self._lock:
            first = name not in self._backends
            future = self._backends.setdefault(name, Future())
        if first:
            try:
                future.set_result(make(name, self._vocabulary))
            except BaseException as error:
                future.set_exception(error)
        return future.result()


def closed() -> EngineError:
    return EngineError("the grammar compiler is shut down")
