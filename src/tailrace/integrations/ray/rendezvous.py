"""The replica that a prefix belongs to, as a function of its hash and of the replicas' names alone.

Rendezvous hashing (Thaler and Ravishankar, 1998): every replica gets a score from the key and its own name, and the
highest score wins. Routers agree without communication. A replica that leaves moves its own keys and no others; one
that joins takes an equal share from each of the others.

A popular prefix may be too much for one replica, so the load is bounded (Mirrokni, Thorup and Zadimoghaddam, arXiv
1608.01350). A replica with more than `slack` times the mean passes a request on to the next in the prefix's order. The
order is fixed, so the overflow of a prefix goes to the same few replicas, which then have it cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import ceil, isfinite


def rank_replicas(key: bytes, names: Sequence[str]) -> list[str]:
    """Return the names in the key's order, its own replica first. It does not depend on the order of `names`."""
    return sorted(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest(), reverse=True)


def limit_load(total: int, replicas: int, slack: float, free: int) -> int:
    """Return how many requests a replica may have, including the next one.

    Args:
        total: requests that all replicas have. slack: factor of the mean, at least 1.
        free: number that is always allowed, since the mean says little at a low load.
    """
    return max(free, ceil(slack * (total + 1) / replicas)) if isfinite(slack) else total + 1


def order_replicas(key: bytes, loads: Mapping[str, int], slack: float, free: int) -> list[str]:
    """Return the replicas in the order in which they are asked: the key's order, those at their bound last.

    Args:
        loads: name → number of requests that the replica has.
    """
    most = limit_load(sum(loads.values()), len(loads), slack, free)
    return sorted(rank_replicas(key, list(loads)), key=lambda name: loads[name] >= most)
