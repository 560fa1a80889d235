"""Threads that have grammars compiled. Each thread has a process of its own, which it kills when a grammar takes too
much.

The result is loaded on the same thread. So the time and memory of compiling have hard limits. Loading repeats the work
of the process, so its cost is bounded by what the process has shown.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.config import GrammarConfig
from tailrace.errors import EngineError, OverloadedError, ParameterError
from tailrace.grammar.base import Compiled
from tailrace.grammar.compile_process import CompileProcess, GrammarTooBigError, ProcessLostError, too_big
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import MIB, load_compiler
from tailrace.request.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import GrammarCompiler

SHARE = 8  # a kept grammar may take this fraction of the memory allowed for compiling
MAX_WAITING = 128  # grammars that no process has started on
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class CompileJob:
    """A grammar to compile, and the callback for its outcome."""

    grammar: Grammar
    done: Callable[[Compiled | Exception, int], None]


class CompilePool:
    """The threads (config.workers of them) and their queue. The threads start with the first grammar."""

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._vocabulary, self._config = vocabulary, config
        self._waiting: deque[CompileJob] = deque()
        self._workers = [CompileProcess(vocabulary, config) for _ in range(config.workers)]
        self._threads: list[threading.Thread] = []
        self._library: Future[GrammarCompiler] | None = None
        self._idle: set[CompileProcess] = set()
        self._lock = threading.Condition()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def submit(self, job: CompileJob) -> None:
        """Compile a grammar. `done` is called once, on a thread of the pool, with the outcome and its approximate size
        in bytes. If too many grammars wait or the pool is closed, `done` is called at once with that error."""
        with self._lock:
            if not self._threads and not self._closed:
                self._threads = [
                    threading.Thread(target=self._serve_jobs, args=(worker,), name=f"grammar-{i}", daemon=True)
                    for i, worker in enumerate(self._workers)
                ]
                for thread in self._threads:
                    thread.start()
            full = len(self._waiting) >= MAX_WAITING
            if not self._closed and not full:
                self._waiting.append(job)
                self._lock.notify_all()
                return
        job.done(make_closed_error() if self._closed else OverloadedError("too many grammars wait to be compiled"), 0)

    def withdraw_job(self, job: CompileJob) -> bool:
        """Take a job back. True: it was still waiting, and `done` is never called. False: it has started or is done."""
        with self._lock:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def close(self) -> None:
        """Close the pool. Grammars that wait or are being compiled fail with EngineError. Returns when all threads and
        processes have ended."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            self._lock.notify_all()
        for worker in self._workers:
            worker.kill_process()
        for thread in threads:
            thread.join()

    def _serve_jobs(self, worker: CompileProcess) -> None:
        while (job := self._take_job(worker)) is not None:
            outcome, size = self._compile_safely(worker, job.grammar)
            job.done(outcome, size)
            worker.restart_process()
        worker.close()

    def _take_job(self, worker: CompileProcess) -> CompileJob | None:
        """Wait for the next job. Threads whose process is running go first. None: the pool is closed and no job is left
        to be answered."""

        def may_proceed() -> bool:
            mine = worker.warm or not any(other.warm for other in self._idle)
            return self._closed or (bool(self._waiting) and mine)

        with self._lock:
            self._idle.add(worker)
            self._lock.notify_all()
            self._lock.wait_for(may_proceed)
            self._idle.discard(worker)
            self._lock.notify_all()  # another thread may take the next job
            return self._waiting.popleft() if self._waiting else None

    def _compile_safely(self, worker: CompileProcess, grammar: Grammar) -> tuple[Compiled | Exception, int]:
        try:
            return self._compile_grammar(worker, grammar)
        except (ParameterError, EngineError) as error:
            return error, 0
        except BaseException as error:  # a panic of a library in Rust is no Exception; the thread must survive it
            log.exception("a grammar could not be compiled")
            return EngineError(f"the grammar could not be compiled: {type(error).__name__}"), 0

    def _compile_grammar(self, worker: CompileProcess, grammar: Grammar) -> tuple[Compiled, int]:
        """Compile and load a grammar; return it and its size.

        Raises:
            ParameterError: it is no grammar, is not supported, or (GrammarTooBigError) takes too much.
            EngineError: closed, or an error of ours.
        """
        if self._closed:
            raise make_closed_error()
        try:
            reply = worker.run(grammar)
        except ProcessLostError as lost:
            if self._closed:
                raise make_closed_error() from None
            if not lost.begun:  # the library could not be imported: not the grammar's fault
                how = "did not answer in time" if lost.timeout else "ended"
                log.error("the process that compiles grammars %s before it began with one", how)
                raise EngineError(f"the grammar compiler could not be started: its process {how}") from None
            if lost.killed:  # twice: see CompileProcess.run
                raise EngineError("the process that compiles grammars was killed from outside; try again") from None
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
        library = self.get_compiler()
        return library.load(reply.text), size + library.growth

    def _too_much(self, timeout: bool) -> GrammarTooBigError:
        if timeout:
            return GrammarTooBigError(f"grammar: takes longer than {self._config.timeout_s:g} s to compile", "grammar")
        text = f"takes more than {self._config.memory_mib} MiB to compile, or breaks the compiler"
        return GrammarTooBigError(f"grammar: {text}", "grammar")

    def get_compiler(self) -> GrammarCompiler:
        """Return the compiler in this process. Made once, by the first thread that needs it. If that fails, the next
        thread tries again."""
        with self._lock:
            first = self._library is None
            future = self._library = self._library or Future()
        if first:
            try:
                future.set_result(load_compiler(self._vocabulary))
            except BaseException as error:
                with self._lock:
                    self._library = None
                future.set_exception(error)
        return future.result()


def make_closed_error() -> EngineError:
    return EngineError("the grammar compiler is shut down")
