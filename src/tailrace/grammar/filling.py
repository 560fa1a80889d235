"""Masks for all sequences of a step that have a grammar, on background threads, while the model computes. The libraries let the
interpreter go while they work."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tailrace.errors import RowError
from tailrace.grammar.base import Job, not_taken

log = logging.getLogger(__name__)

# Of processor time that one job may take in a step: xgrammar has no limit of its own, and the step waits for all jobs. Time in which the
# thread does not run is not counted, so that a busy machine fails nobody.
MASK_LIMIT_S = 0.25


class Filling:
    """Masks that are being filled."""

    def __init__(self, futures: list[Future[None]], errors: list[Exception | None]) -> None:
        self._futures, self._errors = futures, errors

    def wait(self) -> list[Exception | None]:
        """Until all masks are filled → what each job raised, in their order; the masks of one that raised are undefined, its matcher is
        as before."""
        for future in self._futures:
            future.result()
        return self._errors


def start(executor: ThreadPoolExecutor, threads: int, jobs: Sequence[Job]) -> Filling:
    """Each thread takes the next group that none has taken."""
    errors: list[Exception | None] = [None] * len(jobs)
    waiting = deque(groups(jobs))

    def work() -> None:
        while True:
            try:
                indices = waiting.popleft()
            except IndexError:
                return
            for index, error in zip(indices, filled([jobs[index] for index in indices], threads), strict=True):
                errors[index] = error

    return Filling([executor.submit(work) for _ in range(min(threads, len(waiting)))], errors)


def groups(jobs: Sequence[Job]) -> list[list[int]]:
    """Which of them are filled in one call of their library. Row by row the model's thread and this one would have to hand the interpreter
    to each other several times for each mask: 3 % of the throughput of 16 streams on two cores."""
    together: dict[type, list[int]] = {}
    alone: list[list[int]] = []
    for index, job in enumerate(jobs):
        if (kind := batched(job)) is not None and kind.joins(job.matcher, job.drafts):
            together.setdefault(kind, []).append(index)
        else:
            alone.append([index])
    return [*together.values(), *alone]


def batched(job: Job) -> Any:
    """The class of its matcher, where that is a base.Batched; else None. (isinstance would read the matcher's properties, which is work
    for the library.)"""
    kind = type(job.matcher)
    return kind if hasattr(kind, "fill_together") else None


def filled(jobs: Sequence[Job], threads: int) -> list[Exception | None]:
    """What each of a group raised."""
    if len(jobs) > 1 and (kind := batched(jobs[0])) is not None:
        try:
            return kind.fill_together(jobs, threads)
        except BaseException:
            log.exception("masks could not be filled together")  # then each fails alone, or does not
    return [outcome(job) for job in jobs]


def outcome(job: Job) -> Exception | None:
    try:
        fill(job)
    except Exception as error:
        return error
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return RowError(f"grammar: the library failed: {type(error).__name__}")
    return None


def fill(job: Job) -> None:
    """Raises RowError (Matcher.fill; or over MASK_LIMIT_S), ValueError: a draft that the grammar does not take."""
    until = time.thread_time() + MASK_LIMIT_S
    walker = job.matcher.fork() if job.drafts else job.matcher
    walker.fill(job.masks[0])
    in_time(until)
    for j, token in enumerate(job.drafts):
        if not walker.accept(token):
            raise not_taken(j, token)
        walker.fill(job.masks[j + 1])
        in_time(until)


def in_time(until: float) -> None:
    """A request over the limit fails once, where it would else slow every step down."""
    if time.thread_time() > until:
        raise RowError(f"the grammar takes too long to match: more than {MASK_LIMIT_S:g} s for one step")
