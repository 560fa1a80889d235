"""Classifier-free guidance in one pass: read two rows of logits and write the guided row. sampling/guidance.py has the
formula."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.kernels.gpu.noise import UNFUSED

BLOCK = 1024


@triton.jit
def combine(logits, stride, own, companion, scale, out, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    s = tl.load(scale + row)
    c = tl.load(logits + tl.load(own + row) * stride + ids, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(logits + tl.load(companion + row) * stride + ids, mask=inside, other=0.0).to(tl.float32)
    none = float("-inf")
    guided = tl.where(u == none, tl.where(s > 1.0, c, none), u + s * (c - u))
    guided = tl.where(c == none, none, guided)
    guided = tl.where((c != c) | (u != u), float("nan"), guided)
    guided = tl.where(s == 1.0, c, tl.where(s == 0.0, u, guided))
    tl.store(out + row * vocab + ids, guided, mask=inside)


def guide(logits: torch.Tensor, own: torch.Tensor, companion: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the guided logits, float32 [R, V].

    logits: [L, V] of any float dtype. own, companion: int64 [R], rows of it. scale: float32 [R], not checked.
    """
    rows, vocab = own.numel(), logits.shape[1]
    out = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    if rows:
        with torch.cuda.device_of(logits):
            combine[(rows, triton.cdiv(vocab, BLOCK))](
                logits, logits.stride(0), own, companion, scale, out, vocab, BLOCK, **UNFUSED
            )
    return out
