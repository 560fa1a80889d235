"""The Triton kernel that stores keys and values in the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_rows(
    key,
    key_t,
    key_h,
    value,
    value_t,
    value_h,
    slots,
    keys,
    values,
    capacity,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t)
    if (slot < 0) | (slot >= capacity):
        return
    h, d, e = tl.arange(0, HEADS_PAD)[:, None], tl.arange(0, DIM_PAD)[None, :], tl.arange(0, VALUE_PAD)[None, :]
    place = slot // SIZE * (HEADS * SIZE) + h * SIZE + slot % SIZE
    inside = (h < HEADS) & (d < DIM)
    k = tl.load(key + t * key_t + h.to(tl.int64) * key_h + d, mask=inside)
    tl.store(keys + place * DIM + d, k.to(keys.dtype.element_ty), mask=inside)
    inside = (h < HEADS) & (e < VALUE_DIM)
    v = tl.load(value + t * value_t + h.to(tl.int64) * value_h + e, mask=inside)
    tl.store(values + place * VALUE_DIM + e, v.to(values.dtype.element_ty), mask=inside)
