"""Masks for all sequences of a step that have a grammar, on background threads, while the model computes. The library lets the
interpreter go while it works."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from tailrace.errors import GrammarError, GrammarLimitError, RowError
from tailrace.grammar.base import BitmaskJob, GuessError, not_taken

log = logging.getLogger(__name__)

# Grammars that were filled together in more time than this are filled each alone, where it is known whose time it is. Processor time of
# the thread: time in which it does not run is not counted, so that a busy machine fails nobody.
TOGETHER_S = 0.02
LIMIT_S = 0.05


class Filling:
    """Masks that are being filled, job by job. done: whether it is over; then errors: what it raised, and seconds: that it took, about. The
    masks of a job that raised are undefined, its matcher is as before."""

    def __init__(self, jobs: int) -> None:
        self.done, self.seconds = [False] * jobs, [0.0] * jobs
        self.errors: list[Exception | None] = [None] * jobs
        self._futures: list[Future[None]] = []

    def run(self, executor: ThreadPoolExecutor, tasks: int, work: Callable[[], None]) -> None:
        self._futures = [executor.submit(work) for _ in range(tasks)]

    def wait(self, within_s: float | None = None) -> list[Exception | None]:
        """Until all are over, or so long (wall clock) → `errors`."""
        for future in wait(self._futures, within_s).done:
            future.result()
        return self.errors


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Jobs of one grammar that a step did not wait for. Until all are over nothing of the grammar may be touched: its matchers share a
    lock, and whoever asked one of them would wait as well."""

    filling: Filling
    jobs: list[int]

    @property
    def over(self) -> bool:
        return all(self.filling.done[job] for job in self.jobs)


def start(executor: ThreadPoolExecutor, threads: int, jobs: Sequence[BitmaskJob], limit_s: float = LIMIT_S) -> Filling:
    """Each thread takes the next group that none has taken.

    Args:
        limit_s: of processor time that one job may take: the step waits for all of them. Time in which the thread does not run is not
            counted, so that a busy machine fails nobody.
    """
    filling, waiting = Filling(len(jobs)), deque(groups(jobs))

    def work() -> None:
        while True:
            try:
                indices = waiting.popleft()
            except IndexError:
                return
            begun_s = time.perf_counter()
            for index, error in zip(indices, filled([jobs[index] for index in indices], threads, limit_s), strict=True):
                filling.errors[index] = error
            took_s = time.perf_counter() - begun_s
            for index in indices:
                filling.seconds[index], filling.done[index] = took_s / len(indices), True

    filling.run(executor, min(threads, len(waiting)), work)
    return filling


def groups(jobs: Sequence[BitmaskJob]) -> list[list[int]]:
    """Which of them are filled in one call of their library. Row by row the model's thread and this one would have to hand the interpreter
    to each other several times for each mask: 3 % of the throughput of 16 streams on two cores. Of each owner one is among strangers; its
    others, however many, hold up none but each other."""
    together: dict[tuple[type, bool, object], list[int]] = {}
    alone: list[list[int]] = []
    owners: set[object] = set()
    for index, job in enumerate(jobs):
        if (kind := batched(job)) is not None and kind.joins(job.matcher, job.drafts):
            further = job.owner is not None and job.owner in owners
            together.setdefault((kind, further, job.owner if further else None), []).append(index)
            owners.add(job.owner)
        else:
            alone.append([index])
    return [*together.values(), *alone]


def batched(job: BitmaskJob) -> Any:
    """The class of its matcher, where that is a base.Batched; else None. (isinstance would read the matcher's properties, which is work
    for the library.)"""
    kind = type(job.matcher)
    return kind if hasattr(kind, "fill_together") else None


def filled(jobs: Sequence[BitmaskJob], threads: int, limit_s: float) -> list[Exception | None]:
    """What each of a group raised. Who fails with guesses is looked at alone: it may be theirs."""
    if len(jobs) > 1 and (kind := batched(jobs[0])) is not None:
        begun_s = time.perf_counter()
        try:
            errors = kind.fill_together(jobs, threads)
            slow = time.perf_counter() - begun_s > TOGETHER_S
            for job in jobs:
                job.matcher.apart = slow
            return [
                outcome(job, limit_s) if job.drafts and isinstance(error, GrammarError) else error
                for job, error in zip(jobs, errors, strict=True)
            ]
        except BaseException:
            log.exception("masks could not be filled together")  # then each fails alone, or does not
    return [outcome(job, limit_s) for job in jobs]


def outcome(job: BitmaskJob, limit_s: float) -> Exception | None:
    begun_s = time.thread_time()
    try:
        fill(job, limit_s)
        job.matcher.apart = time.thread_time() - begun_s > TOGETHER_S / 4
    except Exception as error:
        return error
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return RowError(f"grammar: the library failed: {type(error).__name__}")
    return None


def fill(job: BitmaskJob, limit_s: float) -> None:
    """Raises GrammarError (Matcher.fill; over the limit): of the first mask alone, which is as it would be without drafts. GuessError: the
    like behind a draft, or over the limit with all of them. ValueError: a draft that the grammar does not take."""
    walker = job.matcher.fork() if job.drafts else job.matcher
    until = time.thread_time() + limit_s
    walker.fill(job.masks[0])
    in_time(until, limit_s)
    for j, token in enumerate(job.drafts):
        if not walker.accept(token):
            raise not_taken(j, token)
        try:
            walker.fill(job.masks[j + 1])
            in_time(until, limit_s)
        except GrammarError as error:
            raise GuessError(j + 1) from error


def in_time(until: float, limit_s: float) -> None:
    """A request over the limit fails once, where it would else slow every step down. until: of time.thread_time."""
    if time.thread_time() > until:
        raise GrammarLimitError(f"grammar: takes too long to match: more than {limit_s * 1e3:g} ms of a step (step_ms)")
