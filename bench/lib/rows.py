"""Rows of logits to sample from, real and synthetic; one streaming read of such rows; usual sampling parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tailrace import _cpu

POOL_BYTES = 256 << 20  # of cold rows
MAX_POOL_ROWS = 512
DISTINCT = 32  # synthetic rows; a pool holds copies of them
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NUCLEUS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
BOTH: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1}


@dataclass(frozen=True)
class Pool:
    """Cold rows, [rows, V]; `take(n)` hands out others each time."""

    name: str
    rows: torch.Tensor

    def take(self, n: int, turn: int) -> torch.Tensor:
        start = turn * n % max(1, self.rows.shape[0] - n + 1)
        return self.rows[start : start + n]


def synthetic(kind: str, vocab: int, dtype: torch.dtype) -> Pool:
    """Rows of one kind; a block of distinct ones, repeated to fill the pool (each copy lies elsewhere in memory)."""
    count = min(MAX_POOL_ROWS, max(128, POOL_BYTES // (vocab * 4)))
    return Pool(f"{kind} {vocab:,}", distinct(kind, vocab).to(dtype).repeat(-(-count // DISTINCT), 1))


def distinct(kind: str, vocab: int) -> torch.Tensor:
    """float32 [DISTINCT, V], always the same."""
    rng = torch.Generator().manual_seed(vocab)
    some = torch.randn(DISTINCT, vocab, generator=rng)
    if kind == "peaked":
        some *= 2.5
        strong = torch.randint(0, vocab, (DISTINCT, 30), generator=rng)
        some[torch.arange(DISTINCT)[:, None], strong] += torch.rand(DISTINCT, 30, generator=rng) * 12 + 4
    return some


def real(model: str | None, dtype: torch.dtype) -> Pool:
    """Logits of the default model over a text."""
    import pydoc_data.topics

    import transformers

    from tailrace.config import ModelConfig
    from tailrace.models import resolve
    from tailrace.text.tokenizer import Tokenizer

    local = resolve(ModelConfig(model=model))
    ids = Tokenizer.load(local.folder).encode("\n".join(pydoc_data.topics.topics.values()), add_special_tokens=False)[
        :256
    ]
    network = transformers.AutoModelForCausalLM.from_pretrained(local.folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = network(torch.tensor([ids])).logits[0]
    count = max(1, min(MAX_POOL_ROWS, POOL_BYTES // (logits.shape[1] * 4)) // 256)
    return Pool(f"{local.name} {logits.shape[1]:,}", logits.to(dtype).repeat(count, 1))


def read_once(logits: torch.Tensor) -> None:
    """Read the memory of the logits once, as a stream: the floor of every sampler."""
    _cpu.stream(logits.data_ptr(), logits.numel() * logits.element_size())
