"""Counter-based noise: Philox4x32-10 and the Gumbel noise made of it, in exact integer arithmetic on int64.

Counter layout, the same on every backend: word 0 = token id, word 1 = stream, words 2 and 3 = position (low, high).
The key's low 32 bits are Philox key 0, its high 32 bits key 1. Gumbel noise takes output word 0.
"""

from __future__ import annotations

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
ROUNDS = 10


def multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a · b for 32-bit a and b, in int64 without overflow: a is split into 16-bit halves."""
    low = (a & 0xFFFF) * b  # < 2^48
    high = (a >> 16) * b + (low >> 16)  # < 2^48 + 2^32
    return (high >> 16) & MASK, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(key: torch.Tensor, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    k0, k1 = key & MASK, (key >> 32) & MASK
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high1, low1 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def gumbel(key: int, position: int, token_ids: torch.Tensor, stream: int) -> torch.Tensor:
    word = torch.ones_like(token_ids)
    counter = (token_ids, word * stream, word * (position & MASK), word * ((position >> 32) & MASK))
    bits = philox(torch.tensor(key, device=token_ids.device), counter)[0]
    # v in (0, 1) is the upper tail 1 − u: near 0 it is resolved finely, and there the noise −log(−log(1 − v)) is large.
    v = (bits.double() + 0.5) * 2.0**-32
    return (-torch.log(-torch.log1p(-v))).float()
