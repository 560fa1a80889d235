"""The numbers of a step's rows on the device: columns of one buffer, so that one copy brings all of them and one
address finds them."""

from __future__ import annotations

import triton
import triton.language as tl

# int64 columns, `padded` entries each: as kernels/rows.py has them, and
SLOT = tl.constexpr(0)
SOURCE = tl.constexpr(1)
POSITION = tl.constexpr(2)
DRAFT = tl.constexpr(3)
RULE = tl.constexpr(4)  # exact where no draft is to be settled; block only where proposals are there
FORCED = tl.constexpr(5)  # the row's token, or −1
BEFORE = tl.constexpr(6)  # how many drafts of its request come before it
MASK = tl.constexpr(7)  # its place in masks, or −1
DENSE = tl.constexpr(8)  # 1 where the row has proposals
COLUMNS = 9
START = tl.constexpr(9)  # behind the columns: int64 [N + 1]


@triton.jit
def column(step, which: tl.constexpr, row):
    """One number of a row."""
    return tl.load(step.numbers + which * step.padded + row)
