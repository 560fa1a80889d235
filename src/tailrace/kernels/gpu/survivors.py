"""The ids that survived for each token. Counterpart of csrc/sample/target.cpp.

The result has a bit per id. The host learns the number of survivors only when it reads them."""

from __future__ import annotations

import triton
import triton.language as tl

from tailrace.kernels.gpu.candidates import load_ids, within
from tailrace.kernels.gpu.columns import FORCED, SLOT, START, column
from tailrace.kernels.gpu.program import FLAGS, GREEDY, SURVIVORS
from tailrace.kernels.gpu.scan import CHUNK


@triton.jit(do_not_specialize=["width"])
def survivors_of_rows(step, tables, work, out, width):
    """Write out.survivors, int32 [N, width, ⌈V / 32⌉], 32 ids in a word.

    All bits are 0 if the program does not ask for them, or if there is no token. It reads the results of sample_rows,
    so it runs before logprobs_of_rows.
    """
    i, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    words = tl.cdiv(step.vocab, 32)
    bits = out.survivors + (i * width + j) * words
    for first_word in range(0, words, CHUNK):
        at = first_word + tl.arange(0, CHUNK)
        tl.store(bits + at, tl.zeros((CHUNK,), tl.int32), mask=at < words)
    tl.debug_barrier()
    first = column(step, START, i)
    flags = tl.load(tables.records + column(step, SLOT, first) * tables.fields + FLAGS)
    if ((flags & SURVIVORS) != 0) & (j < tl.load(out.num_tokens + i)):
        row = first + j
        if ((flags & GREEDY) != 0) | (column(step, FORCED, row) >= 0):  # there was only one choice
            token = tl.load(out.token_ids + i * width + j).to(tl.int32)
            tl.store(bits + token // 32, tl.full((), 1, tl.int32) << (token % 32))
        else:
            ids, n = work.ids + row * step.vocab, tl.load(work.count + row)
            for first_id in range(0, n, CHUNK):
                id = load_ids(ids, n, first_id)
                one = tl.full((CHUNK,), 1, tl.int32) << (id % 32)
                tl.atomic_or(bits + id // 32, one, mask=within(n, first_id))
