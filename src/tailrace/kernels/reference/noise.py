"""Counter-based noise: Philox4x32-10 and the numbers made from it, in exact integer arithmetic on int64.

Counter layout, the same on every backend:

- word 0: the token id, or a group of ids.
- word 1: 2 · stream, or 2 · stream + 1 for hot bits.
- words 2 and 3: the position, low and high.

The key's low 32 bits are Philox key 0, its high 32 bits key 1.

Sixteen ids share the 128 bits of one call for their hot bits: bit i of the AND of its eight halfwords, set with
probability 2^-8. Another call gives each id a word of its own. A hot id's word is scaled to (0, 2^-8) and any other
id's to (2^-8, 1), which makes u. So u is exactly uniform, and has 40 bits where the noise is large. No id that is not
hot has noise above 5.5433, so a draw can rule out most of a row without computing its noise
(docs/decisions/0009-noise-with-a-bound.md).
"""

from __future__ import annotations

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
ROUNDS = 10
GROUP = 16  # ids that share their hot bits
HOT = 2.0**-8  # the share of ids that are hot


def multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low 32 bits of a · b for 32-bit a and b, in int64. a is split into 16-bit halves, so nothing
    overflows."""
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
    def words(ids: torch.Tensor, of_stream: int) -> tuple[torch.Tensor, ...]:
        one = torch.ones_like(ids)
        counter = (ids, one * of_stream, one * (position & MASK), one * ((position >> 32) & MASK))
        return philox(torch.tensor(key, device=ids.device), counter)

    w0, w1, w2, w3 = words(token_ids // GROUP, 2 * stream + 1)
    both = w0 & w1 & w2 & w3
    hot = (both & (both >> 16)) >> (token_ids % GROUP) & 1 == 1
    v = (words(token_ids, 2 * stream)[0].double() + 0.5) * 2.0**-32
    # e = −ln(1 − u), a standard exponential. If u is small, so is e, and the noise −ln e is large.
    e = torch.where(hot, -torch.log1p(-v * HOT), -torch.log((1.0 - v) * (1.0 - HOT)))
    return (-torch.log(e)).float()


def words(key: int, position: int, stream: int, token_ids: torch.Tensor) -> torch.Tensor:
    one = torch.ones_like(token_ids)
    counter = (token_ids, one * 2 * stream, one * (position & MASK), one * ((position >> 32) & MASK))
    return philox(torch.tensor(key, device=token_ids.device), counter)[0]


def uniform(key: int, position: int, stream: int) -> float:
    zero = torch.zeros((), dtype=torch.int64)
    counter = (zero, zero + 2 * stream, zero + (position & MASK), zero + ((position >> 32) & MASK))
    w0, w1, _, _ = philox(torch.tensor(key), counter)
    return ((int(w0) << 21 | int(w1) >> 11) + 0.5) * 2.0**-53
