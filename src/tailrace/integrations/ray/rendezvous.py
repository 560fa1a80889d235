"""Which replica a prefix belongs to, as a function of its hash and of the replicas' names alone.

Rendezvous hashing (Thaler and Ravishankar, 1998): every replica gets a score from the key and its own name, and the
highest score wins. Routers agree without speaking to one another. A replica that leaves moves its own keys and no
others; one that joins takes an equal share from each of the others.

A popular prefix is more than one replica can serve, so the load is bounded (Mirrokni, Thorup and Zadimoghaddam, arXiv
1608.01350): who has more than `slack` times the mean passes a request on to the next in the prefix's order. The order
is fixed, so the overflow of a prefix goes to the same few replicas, which then have it cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil, isfinite


def ranked(key: bytes, names: Sequence[str]) -> list[str]:
    """The names, the key's own first. The order does not depend on the order of `names`."""
    return sorted(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest(), reverse=True)


def bound(total: int, replicas: int, slack: float, free: int) -> int:
    """Requests that a replica may have once it gets the next one.

    Args:
        total: requests that all replicas have. slack: at least 1, times the mean. free: so many are always allowed: the
            mean says little where there is little to do.
    """
    return max(free, ceil(slack * (total + 1) / replicas)) if isfinite(slack) else total + 1


def preferred(key: bytes, loads: Mapping[str, int], slack: float, free: int) -> list[str]:
    """The replicas in the order in which they are to be asked: the key's order, those at their bound last.

    Args:
        loads: name → requests that it has.
    """
    most = bound(sum(loads.values()), len(loads), slack, free)
    return sorted(ranked(key, list(loads)), key=lambda name: loads[name] >= most)
