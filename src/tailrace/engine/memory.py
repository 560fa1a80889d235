"""A limit of the memory that requests add to the engine's process. The engine ends the largest request before the
kernel would end the process.

Below half of the limit nothing is measured per request. Above it, each output's memory growth is charged to its
request. At the limit no request is accepted, and requests are ended, the largest first, until the process is below the
limit. If memory remains when no request is left, it counts as the engine's own from then on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Iterator

from tailrace.engine.cache_size import measure_available_memory
from tailrace.engine.sequence import Request
from tailrace.errors import OverloadedError, TailraceError

log = logging.getLogger(__name__)

SHARE = 0.5  # share of the memory that is available when the engine is ready
NEAR = 0.5  # share of the limit from which growth is charged to requests
LOOK_S = 0.05
SETTLE_S = 0.5  # time until the memory of an ended request is free
TOKEN_BYTES = 200  # about the bytes of a token's history, for requests without a measured growth
MIB = 1 << 20
LEAST = 256 * MIB  # for the case that more is promised than available: a limit of 0 would refuse all requests


class MemoryLimit:
    """The limit of one engine.

    Args:
        limit: bytes beyond the current size of the process. With 0 it is SHARE · (available memory − promised). It is
            at least LEAST, or SHARE · (available memory) if that is smaller.
        promised: bytes that are allocated but not yet resident. The system provides memory at the first write.
    """

    def __init__(self, limit: int = 0, promised: int = 0) -> None:
        free = measure_available_memory()
        self.limit = limit or int(max(min(LEAST, SHARE * free), SHARE * (free - promised)))
        self._base = read_resident_bytes() + promised
        self._looked_s = self._ended_s = 0.0
        self._near = False
        self.over = False

    def check(self, requests: Collection[Request]) -> tuple[Request, TailraceError] | None:
        """Return the request that must end now, and the error. It is called between two steps. It does not read the
        process's size at every call."""
        now = time.monotonic()
        if now < self._looked_s + LOOK_S:
            return None
        self._looked_s = now
        grown = read_resident_bytes() - self._base
        self._near, self.over = grown > NEAR * self.limit, grown > self.limit
        if not self.over or now < self._ended_s + SETTLE_S:
            return None
        self._ended_s = now
        if requests:
            return self._pick_largest(requests, grown)
        log.warning(
            "%d MiB more than at the start, and no request holds them: they count as the engine's own", grown // MIB
        )
        self._base += grown
        self.over = False
        return None

    def add_own(self, size: int) -> None:
        """Count bytes as the engine's own, not as growth by requests; a negative number takes some back."""
        self._base += size

    def refusal(self) -> OverloadedError:
        """Return the error for a new request at the limit."""
        return OverloadedError(
            f"requests hold all of the {self.limit // MIB} MiB that they may (memory_growth_gib); try again later"
        )

    @contextlib.contextmanager
    def of(self, request: Request) -> Iterator[None]:
        """Charge the memory growth within the block to the request."""
        before = read_resident_bytes() if self._near else 0
        yield
        if before:
            request.grown_bytes += max(0, read_resident_bytes() - before)

    def _pick_largest(self, requests: Collection[Request], grown: int) -> tuple[Request, TailraceError]:
        largest = max(requests, key=estimate_bytes)
        log.error(
            "%d MiB more than at the start, over the bound of %d: request %s is ended, which has grown by %d MiB",
            grown // MIB,
            self.limit // MIB,
            largest.id,
            estimate_bytes(largest) // MIB,
        )
        limit = f"{self.limit // MIB} MiB that requests may (memory_growth_gib)"
        return largest, OverloadedError(f"this request took most of the {limit}")


def estimate_bytes(request: Request) -> int:
    """Return about the bytes of a request: its measured growth, and its tokens."""
    return request.grown_bytes + TOKEN_BYTES * sum(len(sequence.tokens) for sequence in request.sequences)


def read_resident_bytes() -> int:
    """Return the bytes of this process in memory, without mapped files."""
    try:
        with open("/proc/self/statm", "rb") as sizes:
            _, whole, shared, *_ = sizes.read().split()
        return (int(whole) - int(shared)) * PAGE
    except OSError:  # not Linux: no limit applies
        return 0


PAGE = os.sysconf("SC_PAGE_SIZE")
