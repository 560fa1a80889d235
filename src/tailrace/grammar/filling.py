"""Masks for all sequences of a step that have a grammar, on background threads, while the model computes. The libraries let the
interpreter go while they work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tailrace.errors import RowError
from tailrace.grammar.base import Matcher

# Of processor time that one job may take in a step: xgrammar has no limit of its own, and the step waits for all jobs. Time in which the
# thread does not run is not counted, so that a busy machine fails nobody.
MASK_LIMIT_S = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence's rows. masks: int32 [len(drafts) + 1, ⌈V / 32⌉], contiguous, on the CPU; row j says what may come after the first j
    drafts, all of which the grammar takes (Matcher.prefix)."""

    matcher: Matcher
    drafts: Sequence[int]
    masks: torch.Tensor


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
    """Each thread takes the next job that none has taken."""
    errors: list[Exception | None] = [None] * len(jobs)
    waiting = deque(enumerate(jobs))

    def work() -> None:
        while True:
            try:
                index, job = waiting.popleft()
            except IndexError:
                return
            try:
                fill(job)
            except Exception as error:
                errors[index] = error
            except BaseException as error:  # a panic of a library in Rust is no Exception
                errors[index] = RowError(f"grammar: the library failed: {type(error).__name__}")

    return Filling([executor.submit(work) for _ in range(min(threads, len(jobs)))], errors)


def fill(job: Job) -> None:
    """Raises RowError (Matcher.fill; or over MASK_LIMIT_S), ValueError: a draft that the grammar does not take."""
    until = time.thread_time() + MASK_LIMIT_S
    walker = job.matcher.fork() if job.drafts else job.matcher
    walker.fill(job.masks[0])
    in_time(until)
    for j, token in enumerate(job.drafts):
        if not walker.accept(token):
            raise ValueError(f"draft {j} (token {token}) is not one that the grammar allows")
        walker.fill(job.masks[j + 1])
        in_time(until)


def in_time(until: float) -> None:
    """A request over the limit fails once, where it would else slow every step down."""
    if time.thread_time() > until:
        raise RowError(f"the grammar takes too long to match: more than {MASK_LIMIT_S:g} s for one step")
