"""Fills the masks of all sequences of a step that have a grammar, on background threads, while the model computes. The
library releases the interpreter's lock meanwhile."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tailrace.errors import GrammarError, RowError
from tailrace.grammar.base import BitmaskJob, DraftMaskError, not_taken
from tailrace.grammar.filling import BitmaskFilling

log = logging.getLogger(__name__)

# Grammars that took longer than this together are filled alone the next time, so that each one's time is known.
TOGETHER_S = 0.02
LIMIT_S = 0.05


def start_filling(
    executor: ThreadPoolExecutor, threads: int, jobs: Sequence[BitmaskJob], limit_s: float = LIMIT_S
) -> BitmaskFilling:
    """Start filling the masks of these jobs. Each thread takes the next group that none has taken.

    Args:
        limit_s: processor time of one job's masks, beyond which no masks after further drafts are filled. The first
            mask has no time limit: the library counts its work (decision 0110).
    """
    filling, waiting = BitmaskFilling(len(jobs)), deque(group_jobs(jobs))

    def fill_groups() -> None:
        while True:
            try:
                indices = waiting.popleft()
            except IndexError:
                return
            begun_s = time.perf_counter()
            for index, error in zip(
                indices, fill_group([jobs[index] for index in indices], threads, limit_s), strict=True
            ):
                filling.errors[index] = error
            took_s = time.perf_counter() - begun_s
            for index in indices:
                filling.seconds[index], filling.done[index] = took_s / len(indices), True

    filling.run(executor, min(threads, len(waiting)), fill_groups)
    return filling


def group_jobs(jobs: Sequence[BitmaskJob]) -> list[list[int]]:
    """Return the groups of jobs that are filled in one call of their library.

    Separate calls would hand the interpreter's lock back and forth several times per mask: 3 % of the throughput of 16
    streams on two cores. Only one job of each owner is grouped with jobs of other owners. An owner's further jobs form
    a group of their own, so that they delay only each other.
    """
    together: dict[tuple[type, bool, object], list[int]] = {}
    alone: list[list[int]] = []
    owners: set[object] = set()
    for index, job in enumerate(jobs):
        if (kind := get_batched_class(job)) is not None and kind.can_batch(job.matcher, job.drafts):
            further = job.owner is not None and job.owner in owners
            together.setdefault((kind, further, job.owner if further else None), []).append(index)
            owners.add(job.owner)
        else:
            alone.append([index])
    return [*together.values(), *alone]


def get_batched_class(job: BitmaskJob) -> Any:
    """Return the class of the job's matcher if it is a base.Batched, else None. (isinstance would read the matcher's
    properties, which costs calls of the library.)"""
    kind = type(job.matcher)
    return kind if hasattr(kind, "fill_together") else None


def fill_group(jobs: Sequence[BitmaskJob], threads: int, limit_s: float) -> list[Exception | None]:
    """Fill a group; return per job the error it raised. A job with drafts that fails is filled again alone: the drafts
    may be the reason."""
    if len(jobs) > 1 and (kind := get_batched_class(jobs[0])) is not None:
        begun_s = time.perf_counter()
        try:
            errors = kind.fill_together(jobs, threads)
            slow = time.perf_counter() - begun_s > TOGETHER_S
            for job in jobs:
                job.matcher.slow = slow
            return [
                fill_error_of(job, limit_s) if job.drafts and isinstance(error, GrammarError) else error
                for job, error in zip(jobs, errors, strict=True)
            ]
        except BaseException:
            log.exception("masks could not be filled together")  # each is filled alone instead
    return [fill_error_of(job, limit_s) for job in jobs]


def fill_error_of(job: BitmaskJob, limit_s: float) -> Exception | None:
    begun_s = time.thread_time()
    try:
        fill_job(job, limit_s)
        job.matcher.slow = time.thread_time() - begun_s > TOGETHER_S / 4
    except Exception as error:
        return error
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return RowError(f"grammar: the library failed: {type(error).__name__}")
    return None


def fill_job(job: BitmaskJob, limit_s: float) -> None:
    """Fill the masks of one job.

    Raises:
        GrammarError: the first mask can't be filled. It would be the same without drafts.
        DraftMaskError: a mask after a draft can't be filled, or the masks before it took longer than the limit.
        ValueError: the grammar does not accept a draft.
    """
    walker = job.matcher.fork() if job.drafts else job.matcher
    until = time.thread_time() + limit_s
    walker.fill(job.masks[0])
    for j, token in enumerate(job.drafts):
        if not walker.accept(token):
            raise not_taken(j, token)
        if time.thread_time() > until:
            raise DraftMaskError(j + 1)
        try:
            walker.fill(job.masks[j + 1])
        except GrammarError as error:
            raise DraftMaskError(j + 1) from error
