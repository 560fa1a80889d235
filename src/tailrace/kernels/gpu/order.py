"""An order of tokens as one integer: larger value first, then smaller id. So the maximum is the same for every split of
a row."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.status import EMPTY, INF, NAN, OK

NAN_KEY = tl.constexpr(0x7FFFFFFF)
INF_KEY = tl.constexpr(0x7F800000)
NONE_KEY = tl.constexpr(-0x7F800001)  # the key of −inf
STATUSES = tl.constexpr((OK, EMPTY, NAN, INF))
LAST_ID = tl.constexpr(0xFFFFFFFF)
NOBODY = tl.constexpr(-(2**63))  # less than every packed number


@triton.jit
def ordered(x):
    """Return int32 keys in the order of float32 values. −0 has the key of +0; NaN has the largest."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x == x, key, NAN_KEY)


@triton.jit
def value_of(key):
    """Return the float32 of a key that is not NaN's."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def packed(key, ids):
    """Return int64 numbers: the key in the high half, the complement of the id in the low half."""
    return (key.to(tl.int64) << 32) | (LAST_ID - ids.to(tl.int64))


@triton.jit
def key_of(pack):
    return (pack >> 32).to(tl.int32)


@triton.jit
def id_of(pack):
    return (pack & LAST_ID) ^ LAST_ID


@triton.jit
def power_of(one):
    """Return the exponent of a power of two below 2^16."""
    high = ((one & 0xF0F0) != 0).to(tl.int32) * 4 + ((one & 0xFF00) != 0).to(tl.int32) * 8
    return ((one & 0xAAAA) != 0).to(tl.int32) + ((one & 0xCCCC) != 0).to(tl.int32) * 2 + high


@triton.jit
def status_of(key):
    """Return the status of a row with this largest key (kernels/status.py)."""
    state = tl.where(key == NONE_KEY, STATUSES[1], STATUSES[0])
    state = tl.where(key == INF_KEY, STATUSES[3], state)
    return tl.where(key == NAN_KEY, STATUSES[2], state)


def splits(rows: int, blocks: int, programs: int = 1024) -> int:
    """Return the number of programs that share a row: enough that a few rows fill a GPU as well as many do."""
    return max(1, min(blocks, programs // max(1, rows)))
