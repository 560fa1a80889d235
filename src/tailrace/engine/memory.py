"""A bound on the memory that requests make the engine's process hold, beyond what it held when it was ready. The
request that grows is ended before the kernel ends the process.

From half of the bound on, the memory that each output adds is written down to its request. At the bound no request is
accepted, and the request that has grown most must end; then the next, as long as it takes. Memory that stays when no
request is left counts as the engine's own from then on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Iterator

from tailrace.engine.cache_size import available
from tailrace.engine.sequence import Request
from tailrace.errors import OverloadedError, TailraceError

log = logging.getLogger(__name__)

SHARE = 0.5  # of what is available when the engine is ready
NEAR = 0.5  # of the bound, from which on it is looked at who grows
LOOK_S = 0.05
SETTLE_S = 0.5  # after a request was ended, for its memory to come back
TOKEN_BYTES = 200  # of history, about, for whom nothing was written down
MIB = 1 << 20
LEAST = 256 * MIB  # where more is promised than there is: a bound of nothing would refuse everybody


class MemoryLimit:
    """One engine's.

    Args:
        limit: bytes beyond what the process holds now; 0: SHARE of what is available beyond what is promised, but at
            least LEAST, or SHARE of all that is available where that is less.
        promised: bytes that were set aside and are not held yet: memory of the cache is given when it is first written.
    """

    def __init__(self, limit: int = 0, promised: int = 0) -> None:
        free = available()
        self.limit = limit or int(max(min(LEAST, SHARE * free), SHARE * (free - promised)))
        self._base = resident() + promised
        self._looked_s = self._ended_s = 0.0
        self._near = False
        self.over = False

    def check(self, requests: Collection[Request]) -> tuple[Request, TailraceError] | None:
        """Called between two steps. The request that must end now, and why. Reads the process's size now and then."""
        now = time.monotonic()
        if now < self._looked_s + LOOK_S:
            return None
        self._looked_s = now
        grown = resident() - self._base
        self._near, self.over = grown > NEAR * self.limit, grown > self.limit
        if not self.over or now < self._ended_s + SETTLE_S:
            return None
        self._ended_s = now
        if requests:
            return self._largest(requests, grown)
        log.warning(
            "%d MiB more than at the start, and no request holds them: they count as the engine's own", grown // MIB
        )
        self._base += grown
        self.over = False
        return None

    def refusal(self) -> OverloadedError:
        """What a new request is told."""
        return OverloadedError(
            f"requests hold all of the {self.limit // MIB} MiB that they may (memory_growth_gib); try again later"
        )

    @contextlib.contextmanager
    def of(self, request: Request) -> Iterator[None]:
        """What is done inside is the request's."""
        before = resident() if self._near else 0
        yield
        if before:
            request.grown_bytes += max(0, resident() - before)

    def _largest(self, requests: Collection[Request], grown: int) -> tuple[Request, TailraceError]:
        largest = max(requests, key=weight)
        log.error(
            "%d MiB more than at the start, over the bound of %d: request %s is ended, which has grown by %d MiB",
            grown // MIB,
            self.limit // MIB,
            largest.id,
            weight(largest) // MIB,
        )
        limit = f"{self.limit // MIB} MiB that requests may (memory_growth_gib)"
        return largest, OverloadedError(f"this request took most of the {limit}")


def weight(request: Request) -> int:
    """Bytes, about: what was seen, and what its tokens take."""
    return request.grown_bytes + TOKEN_BYTES * sum(len(sequence.tokens) for sequence in request.sequences)


def resident() -> int:
    """Bytes of this process in memory, but for files that are mapped."""
    try:
        with open("/proc/self/statm", "rb") as sizes:
            _, whole, shared, *_ = sizes.read().split()
        return (int(whole) - int(shared)) * PAGE
    except OSError:  # not Linux: nothing is bounded
        return 0


PAGE = os.sysconf("SC_PAGE_SIZE")
