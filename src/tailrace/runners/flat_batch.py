"""The tokens of several sequences side by side → a Batch. The engine and the drafters lay out their passes with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tailrace.runners.base import Batch


@dataclass(slots=True)
class FlatTokens:
    """One pass over N sequences, as it is put together. The fields are those of Batch, as lists.

    kv_len: of each sequence, the position after its last token in the pass. wanted: indices into token_ids, ascending.
    """

    token_ids: list[int] = field(default_factory=list)
    query_start: list[int] = field(default_factory=lambda: [0])
    kv_len: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    def add(self, tokens: Iterable[int], end: int) -> None:
        """Add a sequence: at least one token, the last of them at position end − 1."""
        self.token_ids += tokens
        self.query_start.append(len(self.token_ids))
        self.kv_len.append(end)

    def make_batch(
        self,
        tables: np.ndarray,
        block_size: int,
        previous: torch.Tensor | None = None,
        adapted: tuple[tuple[int, torch.Tensor], ...] = (),
        slots: Sequence[int] | None = None,
    ) -> Batch:
        """Return the pass as tensors. tables: int32 [N, B], each row covers the positions below kv_len. previous,
        adapted, slots: see Batch."""
        starts, ends = np.array(self.query_start), np.array(self.kv_len)
        owner, positions = np.arange(len(ends)), ends - 1
        if len(self.token_ids) > len(ends):  # a sequence has several tokens
            counts = np.diff(starts)
            owner = np.repeat(owner, counts)
            positions = np.arange(starts[-1]) - np.repeat(starts[1:] - ends, counts)
        blocks = tables[owner, positions // block_size].astype(np.int64)
        return Batch(
            token_ids=torch.from_numpy(np.array(self.token_ids, dtype=np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size),
            query_start=torch.from_numpy(starts.astype(np.int32)),
            kv_len=torch.from_numpy(ends.astype(np.int32)),
            block_tables=torch.from_numpy(tables),
            wanted=torch.from_numpy(np.array(self.wanted, dtype=np.int64)),
            previous=previous,
            slots=None if slots is None else torch.from_numpy(np.array(slots, dtype=np.int64)),
            adapted=adapted,
        )


def lay_out(
    tokens: Sequence[Sequence[int]],
    first: Sequence[int],
    tables: torch.Tensor,
    block_size: int,
    wanted: Sequence[int] | None = None,
) -> Batch:
    """Lay out one pass over N sequences. Each sequence's last token may need logits.

    Args:
        tokens: of each sequence, at least one.
        first: the position of the sequence's first token.
        tables: int32 [N, B]. A row covers all positions of its sequence.
        wanted: the sequences whose last token needs logits, ascending. None: all.
    """
    flat = FlatTokens()
    for new, start in zip(tokens, first, strict=True):
        flat.add(new, start + len(new))
    flat.wanted += [flat.query_start[i + 1] - 1 for i in (range(len(tokens)) if wanted is None else wanted)]
    return flat.make_batch(tables.numpy(), block_size)


def block_table(blocks: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return lists of blocks as int32 [N, B], padded with 0. B is the longest list's length, at least 1."""
    out = np.zeros((len(blocks), max(map(len, blocks), default=1) or 1), dtype=np.int32)
    for row, owned in zip(out, blocks, strict=True):
        row[: len(owned)] = owned
    return torch.from_numpy(out)
