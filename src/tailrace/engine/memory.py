"""A limit of the memory that requests add to the engine's process. The engine ends requests before the kernel would end
the process.

A request's memory is an estimate from its tokens and its parameters. Above half of the limit the process's growth by
each output is added. At the limit the user who holds most gives way (decision 0104): the largest request of that user
is ended, again and again, until the process is below the limit. A new request is refused if its user holds an equal
part already. If memory remains when no request is left, it counts as the engine's own from then on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from tailrace.engine.cache_size import measure_available_memory
from tailrace.engine.sequence import Request
from tailrace.errors import OverloadedError, TailraceError
from tailrace.wire.messages import Owner

log = logging.getLogger(__name__)

SHARE = 0.5  # share of the memory that is available when the engine is ready
NEAR = 0.5  # share of the limit from which growth is charged to requests
FAR = 1.5  # times the limit; beyond it those who hold little give way too, if nobody holds much
MAX_USERS = 64  # with requests, at the limit; each may hold this part of the limit whatever others hold
LOOK_S = 0.05
SETTLE_S = 0.5  # from one judgement to the next: time until the memory of an ended request is free
TOKEN_BYTES = 200  # about the bytes of a token's history
PARAM_BYTES = 8  # about the bytes in memory of an encoded byte of the parameters
MIB = 1 << 20
OWN = 64 * MIB  # what the engine itself takes at first uses, about; with a small limit that alone is beyond FAR
LEAST = 256 * MIB  # for the case that more is promised than available: a limit of 0 would refuse all requests


@dataclass(slots=True)
class Holding:
    """What a user holds, about, and the user's weight. largest: the request that holds most."""

    weight: int
    bytes: int
    largest: Request


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
        self._looked_s = self._judged_s = 0.0
        self.near = False
        self._holdings: dict[str, Holding] = {}  # by user, while the process is over the limit
        self.over = False

    def check(self, requests: Collection[Request]) -> tuple[Request, TailraceError] | None:
        """Return the request that must end now, and the error. It is called between two steps. It does not read the
        process's size at every call."""
        now = time.monotonic()
        if now < self._looked_s + LOOK_S:
            return None
        self._looked_s = now
        grown = read_resident_bytes() - self._base
        self.near, self.over = grown > NEAR * self.limit, grown > self.limit
        if not self.over:
            self._holdings = {}
            return None
        if now < self._judged_s + SETTLE_S:
            return None
        self._judged_s = now
        self._holdings = sum_holdings(requests)
        if self._holdings:
            return self._pick_largest(grown)
        log.warning(
            "%d MiB more than at the start, and no request holds them: they count as the engine's own", grown // MIB
        )
        self._base += grown
        self.over = False
        return None

    def add_own(self, size: int) -> None:
        """Count bytes as the engine's own, not as growth by requests; a negative number takes some back."""
        self._base += size

    def check_place(self, owner: Owner) -> None:
        """Check that a new request of this owner may be accepted.

        Raises:
            OverloadedError: the process is at the limit, and the owner holds an equal part or more, by weight. Or there
                are more than MAX_USERS users with requests.
        """
        if not self.over:
            return
        own = self._holdings.get(owner.user)
        held = sum(holding.bytes for holding in self._holdings.values())
        weights = sum(holding.weight for holding in self._holdings.values()) + (0 if own else owner.weight)
        part = max(self.limit / MAX_USERS, min(self.limit, held) * owner.weight / weights)
        crowded = len(self._holdings) + (own is None) > MAX_USERS
        if not crowded and (own is None or own.bytes < part):
            return
        whose = f", {own.bytes // MIB} of them this user's" if own and len(self._holdings) > 1 else ""
        limit = f"{self.limit // MIB} MiB that they may (memory_growth_gib)"
        raise OverloadedError(f"requests hold all of the {limit}{whose}; try again later")

    def add(self, request: Request) -> None:
        """Estimate what a new request holds."""
        request.grown_bytes += PARAM_BYTES * len(msgspec.msgpack.encode(request.params))
        if self.over:
            add_holding(self._holdings, request)

    @contextlib.contextmanager
    def of(self, request: Request) -> Iterator[None]:
        """Charge the memory growth within the block to the request."""
        before = read_resident_bytes() if self.near else 0
        yield
        if before:
            request.grown_bytes += max(0, read_resident_bytes() - before)

    def _pick_largest(self, grown: int) -> tuple[Request, TailraceError] | None:
        """Return the largest request of the user who holds most, unless that user holds little, and the error."""
        most = max(self._holdings.values(), key=lambda holding: holding.bytes / holding.weight)
        far = max(FAR * self.limit, self.limit + OWN)
        if most.bytes < self.limit / MAX_USERS and grown < far and len(self._holdings) <= MAX_USERS:
            return None
        largest = most.largest
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
    """Return about the bytes of a request: its parameters, its measured growth, and its tokens."""
    tokens = sum(len(member.tokens) for sequence in request.sequences for member in sequence.pair)
    return request.grown_bytes + TOKEN_BYTES * tokens


def sum_holdings(requests: Iterable[Request]) -> dict[str, Holding]:
    """Return what each user with requests holds."""
    holdings: dict[str, Holding] = {}
    for request in requests:
        add_holding(holdings, request)
    return holdings


def add_holding(holdings: dict[str, Holding], request: Request) -> None:
    """Add a request to what its user holds."""
    size, owner = estimate_bytes(request), request.owner
    holding = holdings.get(owner.user)
    if holding is None:
        holdings[owner.user] = Holding(owner.weight, size, request)
        return
    holding.weight, holding.bytes = owner.weight, holding.bytes + size
    if size > estimate_bytes(holding.largest):
        holding.largest = request


def read_resident_bytes() -> int:
    """Return the bytes of this process in memory, without mapped files."""
    try:
        with open("/proc/self/statm", "rb") as sizes:
            _, whole, shared, *_ = sizes.read().split()
        return (int(whole) - int(shared)) * PAGE
    except OSError:  # not Linux: no limit applies
        return 0


PAGE = os.sysconf("SC_PAGE_SIZE")
