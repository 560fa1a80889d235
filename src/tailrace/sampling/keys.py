"""From a request's seed to the 64-bit keys of its sequences' noise, and the keys of requests without a seed."""

from __future__ import annotations

import os
from hashlib import blake2b

from tailrace.errors import ParameterError
from tailrace.request.fields import MAX_SEED, MIN_SEED

MASK = 2**64 - 1


class KeySource:
    """A sequence of keys for requests that give no seed.

    With a seed the n-th key is the same in every process. So ranks of tensor parallelism agree if they ask in the same
    order. Without a seed the operating system provides each key.

    Args:
        seed: 64 bits. Anyone who knows the seed knows every later key.

    Raises:
        ParameterError: seed is no integer of 64 bits.
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (type(seed) is not int or not MIN_SEED <= seed <= MAX_SEED):
            raise ParameterError(f"seed must be an integer of 64 bits, got {seed!r:.100}", "seed")
        self.seed, self.taken = seed, 0

    @staticmethod
    def shared(*parts: object) -> KeySource:
        """Return the source that all processes with the same parts share. Parts are compared by their `repr`."""
        digest = blake2b(repr(parts).encode(), digest_size=8).digest()
        return KeySource(int.from_bytes(digest, "little", signed=True))

    def key_of(self, seed: int | None) -> int:
        """Return the key of a request with this seed. Without a seed, return the next key."""
        if seed is not None or self.seed is None:
            return request_key(seed, 0)
        self.taken += 1
        return request_key(self.seed, self.taken)


def request_key(seed: int | None, index: int) -> int:
    """Return the key of sequence `index` of a request, an int64. Sequence 0 of a seeded request has the seed itself as
    its key.

    The others mix (seed, index) by two rounds of SplitMix64's finaliser (Steele et al., OOPSLA 2014). So the second
    sequence of seed 7 differs from the first of seed 8. Without a seed the operating system provides the key.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8), "little", signed=True)
    if index == 0:
        return seed
    mixed = _mix_bits(_mix_bits(seed & MASK) + index * 0x9E3779B97F4A7C15 & MASK)
    return mixed - 2**64 if mixed >= 2**63 else mixed


def _mix_bits(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31
