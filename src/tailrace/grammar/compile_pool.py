"""Threads that have grammars compiled. Each thread waits for one child of the compiling process at a time.
fair_schedule.py decides which grammar comes next.

The result is loaded on the same thread. So the time and memory of compiling have hard limits. Loading repeats the work
of the child, so its cost is bounded by what the child has shown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tailrace.base.framed_pipes import MIB
from tailrace.config import GrammarConfig
from tailrace.errors import EngineError, MachineBusyError, OverloadedError, ParameterError, TailraceError
from tailrace.grammar.base import Compiled
from tailrace.grammar.compile_child import Attempt
from tailrace.grammar.compile_messages import Task
from tailrace.grammar.compile_process import CompileProcess
from tailrace.grammar.estimate import estimate_cost
from tailrace.grammar.fair_schedule import SLICE_S, FairSchedule, Job, make_lanes
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import load_compiler
from tailrace.request.options import Grammar

if TYPE_CHECKING:
    from tailrace.grammar.llguidance import GrammarCompiler

SHARE = 8  # a kept grammar may take this fraction of the memory allowed for compiling
MAX_WAITING = 128  # grammars that no child has started on
log = logging.getLogger(__name__)


class GrammarTooBigError(ParameterError):
    """The grammar takes too much time or memory, and most likely would again."""


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """A compiled grammar, or why there is none. size: its approximate bytes."""

    result: Compiled | TailraceError
    size: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class CompileJob(Job):
    """A grammar to compile, and the futures of the requests that wait for it, each with its user."""

    key: bytes
    grammar: Grammar
    futures: dict[Future[Compiled], str] = field(default_factory=dict)


class CompilePool:
    """The jobs, and the threads that run them. The threads start with the first grammar.

    Args:
        keep: called with each job and its outcome, before its futures get the outcome. On a thread of the pool.
    """

    def __init__(
        self, vocabulary: Vocabulary, config: GrammarConfig, keep: Callable[[CompileJob, CompileOutcome], None]
    ) -> None:
        self._vocabulary, self._config, self._keep = vocabulary, config, keep
        self._process = CompileProcess(vocabulary, config)
        lanes = make_lanes(config.workers)
        self._schedule = FairSchedule(lanes, MAX_WAITING)
        self._num_threads = sum(lane.places for lane in lanes)
        self._threads: list[threading.Thread] = []
        self._jobs: dict[bytes, CompileJob] = {}
        self._library: Future[GrammarCompiler] | None = None
        self._lock = threading.Condition()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the compiling process, and of its children that compile."""
        pid = self._process.pid
        return [] if pid is None else [pid, *self._process.children]

    def join(self, key: bytes, user: str, weight: int = 1) -> Future[Compiled] | None:
        """Return a new future for the grammar with this key, if the grammar waits or is being compiled."""
        with self._lock:
            job = self._jobs.get(key)
            return None if job is None else self._add_future(job, user, weight)

    def submit(self, key: bytes, grammar: Grammar, user: str, weight: int = 1) -> Future[Compiled]:
        """Compile a grammar for a user. The future gets the outcome, or OverloadedError if too many grammars wait, or
        EngineError if the pool is closed."""
        with self._lock:
            if self._closed:
                return fail_future(Future(), make_closed_error())
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._serve_jobs, name=f"grammar-{i}", daemon=True)
                    for i in range(self._num_threads)
                ]
                for thread in self._threads:
                    thread.start()
            if (job := self._jobs.get(key)) is None:
                job = self._jobs[key] = CompileJob(estimate_cost(grammar), key=key, grammar=grammar)
            return self._add_future(job, user, weight)

    def forget(self, future: Future[Compiled]) -> None:
        """Note that the request with this future no longer waits. If no request is left, a job that waits is dropped,
        and a job beyond the fast lane is stopped. Any other running job finishes."""
        with self._lock:
            job = next((job for job in self._jobs.values() if future in job.futures), None)
            if job is None:
                return  # it is done
            user = job.futures.pop(future)
            if user not in job.futures.values():
                self._schedule.remove(job, user)
            self._drop_unwanted(job)
        fail_future(future, make_unwanted_error())

    def close(self) -> None:
        """Close the pool. Grammars that wait or are being compiled fail with EngineError. Returns when all threads and
        processes have ended."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            self._lock.notify_all()
        self._process.close()
        for thread in threads:
            thread.join()
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._end_job(job, CompileOutcome(make_closed_error()))

    def _add_future(self, job: CompileJob, user: str, weight: int) -> Future[Compiled]:
        future = Future[Compiled]()
        future.set_running_or_notify_cancel()
        job.futures[future] = user
        if (lost := self._schedule.add(job, user, weight)) is not None:
            self._refuse_user(*lost)
        self._lock.notify_all()
        return future

    def _refuse_user(self, job: Job, user: str) -> None:
        """Fail the requests of a user who has lost the place of a job."""
        assert isinstance(job, CompileJob)
        for future in [future for future, owner in job.futures.items() if owner == user]:
            del job.futures[future]
            fail_future(future, OverloadedError("too many grammars wait to be compiled; try again later"))
        self._drop_unwanted(job)

    def _drop_unwanted(self, job: CompileJob) -> None:
        """Forget a waiting job that no request waits for."""
        if not job.futures and job.payer is None:
            self._jobs.pop(job.key, None)

    def _serve_jobs(self) -> None:
        while (job := self._take_job()) is not None:
            begun_s = time.thread_time()
            attempt, outcome = self._compile_safely(job)
            used_s = attempt.cpu_s + time.thread_time() - begun_s
            if outcome is not None:
                self._end_job(job, outcome, used_s)
                continue
            with self._lock:
                self._schedule.stop(job, used_s)
                self._drop_unwanted(job)
                self._lock.notify_all()

    def _take_job(self) -> CompileJob | None:
        """Wait for the next job. None: the pool is closed."""
        job: Job | None = None

        def may_proceed() -> bool:
            nonlocal job
            job = None if self._closed else self._schedule.take()
            return self._closed or job is not None

        with self._lock:
            self._lock.wait_for(may_proceed)
        assert job is None or isinstance(job, CompileJob)
        return job

    def _end_job(self, job: CompileJob, outcome: CompileOutcome, used_s: float = 0.0) -> None:
        """Keep the outcome, and pass it to all who wait."""
        self._keep(job, outcome)
        with self._lock:
            if job.payer is not None:
                self._schedule.finish(job, used_s)
            self._jobs.pop(job.key, None)
            futures, job.futures = job.futures, {}
            self._lock.notify_all()
        for future in futures:
            if isinstance(outcome.result, TailraceError):
                fail_future(future, outcome.result)
            else:
                future.set_result(outcome.result)

    def _may_continue(self, job: CompileJob, used_s: float) -> bool:
        """Return whether a job that has used its time in the fast lane goes on."""
        with self._lock:
            if self._closed or not job.futures or not self._schedule.may_continue(job, used_s):
                return False
            self._lock.notify_all()  # a place may be free
            return True

    def _compile_safely(self, job: CompileJob) -> tuple[Attempt, CompileOutcome | None]:
        """Compile and load a grammar. Return no outcome if the job has to wait for the next lane."""
        attempt, slow = Attempt("stopped"), job.slow
        try:
            attempt = self._process.run(Task(job.grammar, slow, job.background), partial(self._may_continue, job))
            if self._closed:
                return attempt, CompileOutcome(make_closed_error())
            # The fast lane has less memory, until the child is moved.
            if attempt.end == "stopped" or (not slow and attempt.cpu_s < 2 * SLICE_S and is_out_of_memory(attempt)):
                return attempt, None
            return attempt, self._load_attempt(attempt)
        except TailraceError as error:
            return attempt, CompileOutcome(error)
        except BaseException as error:  # a panic of a library in Rust is no Exception; the thread must survive it
            log.exception("a grammar could not be compiled")
            return attempt, CompileOutcome(EngineError(f"the grammar could not be compiled: {type(error).__name__}"))

    def _load_attempt(self, attempt: Attempt) -> CompileOutcome:
        """Return the loaded grammar of an attempt.

        Raises:
            ParameterError: it is no grammar, is not supported, or (GrammarTooBigError) takes too much.
            MachineBusyError: the machine had no time for it.
            EngineError: an error of ours.
        """
        if is_out_of_memory(attempt):
            text = f"takes more than {self._config.memory_mib} MiB to compile, or breaks the compiler"
            raise GrammarTooBigError(f"grammar: {text}", "grammar")
        match attempt.end:
            case "timeout":
                text = f"takes longer than {self._config.timeout_s:g} s to compile"
                raise GrammarTooBigError(f"grammar: {text}", "grammar")
            case "starved":
                raise MachineBusyError("the machine is too busy to compile the grammar; try again later")
            case "killed":
                raise EngineError("the process that compiles grammars was killed from outside; try again")
            case "unstarted":
                log.error("the process that compiles grammars %s before it began with one", attempt.text)
                raise EngineError(f"the grammar compiler could not be started: its process {attempt.text}")
        reply = attempt.reply
        match reply.outcome:
            case "invalid":
                raise ParameterError(reply.text, "grammar")
            case "unsupported":
                raise ParameterError(f"grammar: invalid or not supported: {reply.text}", "grammar")
            case "broken":
                raise EngineError(f"the grammar could not be compiled: {reply.text}")
        size = max(reply.resident, len(reply.text))
        if reply.outcome == "big" or size > self._config.memory_mib * MIB // SHARE:
            raise GrammarTooBigError(f"grammar: too big, compiled it takes {size // MIB} MiB", "grammar")
        library = self.get_compiler()
        return CompileOutcome(library.load(reply.text), size + library.growth)

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


def is_out_of_memory(attempt: Attempt) -> bool:
    """Return whether the child ended for lack of memory, or by a fault."""
    return attempt.end == "crashed" or (attempt.end == "reply" and attempt.reply.outcome == "memory")


def fail_future(future: Future[Compiled], error: TailraceError) -> Future[Compiled]:
    future.set_exception(error)
    return future


def make_closed_error() -> EngineError:
    return EngineError("the grammar compiler is shut down")


def make_unwanted_error() -> EngineError:
    return EngineError("no request waits for this grammar any more")
