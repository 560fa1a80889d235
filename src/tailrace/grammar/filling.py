"""Bitmasks that are being filled on background threads: those that a step waits for, and those that it leaves
unfinished.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass


class BitmaskFilling:
    """The state of a step's masks.

    - done: whether each job's masks are filled.
    - errors: what each job raised. Its masks are then undefined, and its matcher has not changed.
    - seconds: about how long each job took.
    """

    def __init__(self, jobs: int) -> None:
        self.done, self.seconds = [False] * jobs, [0.0] * jobs
        self.errors: list[Exception | None] = [None] * jobs
        self._futures: list[Future[None]] = []

    def run(self, executor: ThreadPoolExecutor, tasks: int, work: Callable[[], None]) -> None:
        self._futures = [executor.submit(work) for _ in range(tasks)]

    def wait(self, within_s: float | None = None) -> list[Exception | None]:
        """Wait until all jobs are done, or for `within_s` (wall clock); return `errors`."""
        for future in wait(self._futures, within_s).done:
            future.result()
        return self.errors


@dataclass(frozen=True, slots=True)
class UnfinishedBitmasks:
    """The jobs of one grammar that a step did not wait for. Until all are done nothing of the grammar may be used: its
    matchers share a lock, and a caller would wait for it."""

    filling: BitmaskFilling
    jobs: list[int]

    @property
    def over(self) -> bool:
        return all(self.filling.done[job] for job in self.jobs)
