"""Masks for all sequences of a step that have a grammar, on background threads, while the model computes. The libraries let the
interpreter go while they work."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tailrace.grammar.base import Matcher


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

    return Filling([executor.submit(work) for _ in range(min(threads, len(jobs)))], errors)


def fill(job: Job) -> None:
    """Raises RowError (Matcher.fill), ValueError: a draft that the grammar does not take."""
    walker = job.matcher.fork() if job.drafts else job.matcher
    walker.fill(job.masks[0])
    for j, token in enumerate(job.drafts):
        if not walker.accept(token):
            raise ValueError(f"draft {j} (token {token}) is not one that the grammar allows")
        walker.fill(job.masks[j + 1])
