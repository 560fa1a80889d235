"""Threads that have grammars compiled, each by a process of its own that it kills when a grammar takes too much.

What comes back is loaded on the same thread. So the time and the memory of compiling are bounded for sure, those of loading only as far as
the process has shown them: loading repeats what it has done.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tailrace.config import GrammarConfig
from tailrace.errors import EngineError, OverloadedError, ParameterError
from tailrace.grammar.base import Compiled
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import LAST, LENGTH, MAX_TEXT, MIB, Reply, WorkerHello, framed, library_of
from tailrace.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import Library

START_S = 120.0  # for a process to import a library and take the vocabulary in: seconds on an idle machine
SHARE = 8  # what is kept of one grammar may take this part of the memory that compiling may
MAX_REPLY = 4 * MAX_TEXT + MIB  # bytes of a message; a character takes up to four
MAX_WAITING = 128  # grammars that no process has begun with
log = logging.getLogger(__name__)


class LostError(Exception):
    """The process is gone, or was killed because it took too long; `begun`: with the grammar, so that this is what broke it."""

    def __init__(self, timeout: bool) -> None:
        super().__init__()
        self.timeout, self.begun = timeout, False


class TooMuchError(ParameterError):
    """The grammar takes too long or too much memory: most likely it would again."""


@dataclass(frozen=True, slots=True, eq=False)
class CompileJob:
    """A grammar to be compiled, and what is told of it."""

    grammar: Grammar
    done: Callable[[Compiled | Exception, int], None]


class Worker:
    """One process, started at the first task and again at once after each loss. Used by one thread; `kill` and `warm` by any."""

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
        """There is a process already."""
        return self._process is not None

    def succeed(self) -> None:
        """Where the process was lost, start the next one: whoever comes then need not wait for it."""
        if self._process is None:
            try:
                self._start()
            except (LostError, OSError):  # whoever comes next sees for itself
                self._drop()

    def run(self, grammar: Grammar) -> Reply:
        """Raises LostError, TooMuchError: the answer is longer than any may be."""
        if self._process is not None and self._process.poll() is not None:
            self._drop()  # it was killed from outside while it had nothing to do
        used = self._process is not None
        try:
            return self._run(grammar)
        except LostError as error:
            # one that had worked was killed from outside just now: no reason to fail a grammar that it had not begun with
            if error.begun or error.timeout or not used:
                raise
        return self._run(grammar)

    def _run(self, grammar: Grammar) -> Reply:
        begun = False
        try:
            process = self._start()
            self._write(process, framed(grammar), START_S)
            self._reply(process, START_S)
            begun = True
            reply = self._reply(process, self._hello.timeout_s)
            if reply.outcome in LAST:
                self._drop()
            return reply
        except (BrokenPipeError, LostError) as error:
            self._drop()
            lost = LostError(isinstance(error, LostError) and error.timeout)
            lost.begun = begun
            raise lost from None
        except BaseException:
            self._drop()  # what it says next could be taken for another grammar's answer
            raise

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
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            process = self._process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._write(process, framed(self._hello), START_S)
        return process

    def _write(self, process: subprocess.Popen[bytes], data: bytes, within_s: float) -> None:
        """A vocabulary is more than a pipe holds, so a process that does not read would block a plain write for ever."""
        assert process.stdin is not None
        sink, until = process.stdin.fileno(), time.monotonic() + within_s
        poll = select.poll()
        poll.register(sink, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise LostError(timeout=True)
            with suppress(BlockingIOError):
                rest = rest[os.write(sink, rest) :]

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

        (length,) = LENGTH.unpack(exactly(LENGTH.size))
        if length > MAX_REPLY:
            raise too_big(length)
        return msgspec.msgpack.decode(exactly(length), type=Reply)

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
        self._waiting: deque[CompileJob] = deque()
        self._workers = [Worker(vocabulary, config) for _ in range(config.workers)]
        self._threads: list[threading.Thread] = []
        self._library: Future[Library] | None = None
        self._idle: set[Worker] = set()
        self._lock = threading.Condition()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def submit(self, order: CompileJob) -> None:
        """Have it compiled; `done` is called on a thread of the pool, once, with the outcome and the bytes it takes (about). Where too many
        wait, or the pool is closed, it is called at once with that."""
        with self._lock:
            if not self._threads and not self._closed:
                self._threads = [
                    threading.Thread(target=self._serve, args=(worker,), name=f"grammar-{i}", daemon=True)
                    for i, worker in enumerate(self._workers)
                ]
                for thread in self._threads:
                    thread.start()
            full = len(self._waiting) >= MAX_WAITING
            if not self._closed and not full:
                self._waiting.append(order)
                self._lock.notify_all()
                return
        order.done(closed() if self._closed else OverloadedError("too many grammars wait to be compiled"), 0)

    def withdraw(self, order: CompileJob) -> bool:
        """It need not be compiled. False: it was begun, or is done; else `done` is never called."""
        with self._lock:
            if order not in self._waiting:
                return False
            self._waiting.remove(order)
            return True

    def close(self) -> None:
        """Grammars that wait or are being compiled fail with EngineError. Returns when all threads and processes have ended."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            self._lock.notify_all()
        for worker in self._workers:
            worker.kill()
        for thread in threads:
            thread.join()

    def _serve(self, worker: Worker) -> None:
        while (order := self._next(worker)) is not None:
            outcome, size = self._outcome(worker, order.grammar)
            order.done(outcome, size)
            worker.succeed()
        worker.close()

    def _next(self, worker: Worker) -> CompileJob | None:
        """Waits for one, which goes to a process that runs already where one is idle. None: closed, and none is left that would have to be
        told."""

        def turn() -> bool:
            mine = worker.warm or not any(other.warm for other in self._idle)
            return self._closed or (bool(self._waiting) and mine)

        with self._lock:
            self._idle.add(worker)
            self._lock.notify_all()
            self._lock.wait_for(turn)
            self._idle.discard(worker)
            self._lock.notify_all()  # another's turn, if there is more
            return self._waiting.popleft() if self._waiting else None

    def _outcome(self, worker: Worker, grammar: Grammar) -> tuple[Compiled | Exception, int]:
        try:
            return self._compiled(worker, grammar)
        except (ParameterError, EngineError) as error:
            return error, 0
        except BaseException as error:  # a panic of a library in Rust is no Exception; the thread must outlive it
            log.exception("a grammar could not be compiled")
            return EngineError(f"the grammar could not be compiled: {type(error).__name__}"), 0

    def _compiled(self, worker: Worker, grammar: Grammar) -> tuple[Compiled, int]:
        """Raises ParameterError: no grammar, or not supported, or (TooMuchError) it takes too much; EngineError."""
        if self._closed:
            raise closed()
        try:
            reply = worker.run(grammar)
        except LostError as lost:
            if self._closed:
                raise closed() from None
            if not lost.begun:  # no grammar is to blame for a library that can't be imported
                how = "did not answer in time" if lost.timeout else "ended"
                log.error("the process that compiles grammars %s before it began with one", how)
                raise EngineError(f"the grammar compiler could not be started: its process {how}") from None
            raise self._too_much(lost.timeout) from None
        if reply.outcome == "invalid":
            raise ParameterError(reply.text, "grammar")
        if reply.outcome == "unsupported":
            raise ParameterError(f"grammar: invalid or not supported: {reply.text}", "grammar")
        if reply.outcome == "memory":
            raise self._too_much(timeout=False)
        if reply.outcome == "broken":
            raise EngineError(f"the grammar could not be compiled: {reply.text}")
        size = max(reply.resident, len(reply.text))
        if reply.outcome == "big" or size > self._config.memory_mib * MIB // SHARE:
            raise too_big(size)
        library = self.library()
        return library.load(reply.text), size + library.growth

    def _too_much(self, timeout: bool) -> TooMuchError:
        if timeout:
            return TooMuchError(f"grammar: takes longer than {self._config.timeout_s:g} s to compile", "grammar")
        text = f"takes more than {self._config.memory_mib} MiB to compile, or breaks the compiler"
        return TooMuchError(f"grammar: {text}", "grammar")

    def library(self) -> Library:
        """In this process; made once, by the thread that needs it first. Where that fails it is tried again when it is needed again."""
        with self._lock:
            first = self._library is None
            future = self._library = self._library or Future()
        if first:
            try:
                future.set_result(library_of(self._vocabulary))
            except BaseException as error:
                with self._lock:
                    self._library = None
                future.set_exception(error)
        return future.result()


def too_big(size: int) -> TooMuchError:
    return TooMuchError(f"grammar: too big, compiled it takes {size // MIB} MiB", "grammar")


def closed() -> EngineError:
    return EngineError("the grammar compiler is shut down")
