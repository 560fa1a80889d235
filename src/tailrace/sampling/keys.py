"""From a request's seed to the 64-bit keys of its sequences' noise."""

from __future__ import annotations

import os

MASK = 2**64 - 1


def request_key(seed: int | None, index: int) -> int:
    """Key of sequence `index` of a request: int64. Sequence 0 of a seeded request has the seed itself.

    The others are mixed from (seed, index) by two rounds of SplitMix64's finaliser (Steele et al., OOPSLA 2014), so that
    seed 7's second sequence is not seed 8's first. Without a seed the key is fresh from the operating system.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8), "little", signed=True)
    if index == 0:
        return seed
    mixed = _mix(_mix(seed & MASK) + index * 0x9E3779B97F4A7C15 & MASK)
    return mixed - 2**64 if mixed >= 2**63 else mixed


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31
