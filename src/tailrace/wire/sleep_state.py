"""What a client remembers while its engine sleeps: the model, who wants the engine back, and how long a load takes. It
does no I/O.

An engine that sleeps is a process that has ended. The requests that come meanwhile stay open streams of the client,
which sends them to the next engine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection

from tailrace.base.fair_line import check_line
from tailrace.config import SchedulerConfig
from tailrace.errors import TailraceError
from tailrace.wire.messages import AdapterChange, ModelInfo, Owner
from tailrace.wire.stream_table import OpenStream

NO_SLEEP = SchedulerConfig()


class SleepState:
    """The state of one client.

    Attributes:
        after: seconds without a request after which the engine ends by itself; 0: it does not.
        model: what the sleeping engine served, until another engine is ready. None: the engine does not sleep.
        changes: what makes the adapters of a new engine those of the one that sleeps.
        wanted: set when a request wants the engine back. on_wanted: called then, once per load.
    """

    def __init__(self, scheduler: SchedulerConfig) -> None:
        self.after, self._max_waiting = scheduler.sleep_after, scheduler.max_waiting
        self.model: ModelInfo | None = None
        self.changes: list[AdapterChange] = []
        self.wanted = asyncio.Event()
        self.on_wanted: Callable[[], None] = lambda: None
        self._callers: list[asyncio.Future[None]] = []
        self._begun_s: float | None = None
        self._took_s: float | None = None

    @property
    def loading(self) -> bool:
        """True while a new engine is being loaded."""
        return self._begun_s is not None and self.model is not None

    @property
    def progress(self) -> float | None:
        """About how much of a load is done, from 0 to 0.99: its time as a share of the last load's. None: no engine is
        being loaded, or none was before."""
        if self._begun_s is None or self._took_s is None:
            return None
        return min((time.monotonic() - self._begun_s) / max(self._took_s, 1e-3), 0.99)

    def check_place(self, owner: Owner, waiting: Collection[OpenStream]) -> None:
        """Check that one more request of the owner may wait for the engine.

        Raises:
            OverloadedError: it may not.
        """
        if len(waiting) < self._max_waiting:
            return
        owners = [stream.message.owner for stream in waiting]
        weights = {one.user: one.weight for one in (*owners, owner)}
        check_line(Counter(one.user for one in owners), owner.user, self._max_waiting, weights.__getitem__)

    def want(self) -> None:
        """Let the engine be loaded, if it sleeps."""
        if self.model is not None and not self.wanted.is_set():
            self.wanted.set()
            self.on_wanted()

    async def wait_until_awake(self) -> None:
        """Let the engine be loaded, and wait for it.

        Raises:
            TailraceError: the load failed.
        """
        if self.model is None:  # it has been loaded since the caller looked
            return
        caller = asyncio.get_running_loop().create_future()
        self._callers.append(caller)
        self.want()
        await caller

    def begin_load(self) -> None:
        """Note that an engine is being loaded."""
        self._begun_s = time.monotonic()

    def end_load(self, error: TailraceError | None = None) -> None:
        """Note that the engine is ready, or can't be had."""
        if self._begun_s is not None and error is None:
            self._took_s = time.monotonic() - self._begun_s
            self.model = None
        self._begun_s = None
        self.wanted.clear()
        callers, self._callers = self._callers, []
        for caller in callers:
            if not caller.done():
                if error is None:
                    caller.set_result(None)
                else:
                    caller.set_exception(error)
