"""How a pass walks along its sequences, and where their states are.

The state of a slot is a ring of `rows` entries: the state after p tokens is in entry p mod rows. A pass that computes
the tokens first … end − 1 of a sequence reads entry `first` and writes the last `rows` states, or as many as it has
tokens. So a sequence can go back by up to rows − 1 positions: rejected drafts, and a token that was computed and then
not used, have no effect. Position 0 reads zeros: a new owner of a slot sees nothing of the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from tailrace.kernels.transfer import together


class WalkPlaces(NamedTuple):
    """What kernels on a GPU read of a walk, on the device. A slot outside the memory, such as −1, stands for padding.

    - starts: int32 [N + 1], the tokens of each sequence in the batch.
    - ends: int32 [N], the position behind each sequence's last token; below its number of tokens for padding.
    - slots: int64 [N].
    """

    starts: torch.Tensor
    ends: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class Moment:
    """The j-th token of each sequence that is long enough.

    - rows: int64 [n], the sequences' places in the batch. They are the first n sequences in the order of `Walk`.
    - kept: int64, the sequences among these that write their state to memory.
    - to: int64, the places in memory that they write to.
    """

    rows: torch.Tensor
    kept: torch.Tensor
    to: torch.Tensor


class Walk:
    """How a pass goes along its sequences: the same for all layers.

    Kernels on the CPU read `starts`, `first`, `slots` and `rows`, those on a GPU `places` and `rows`. What the
    reference needs is made on demand; there the longest sequence comes first.

    Args:
        query_start: [N + 1], the tokens of each sequence in the batch.
        kv_len: [N], the positions of each sequence up to its last token.
        slots: [N]. None: sequence i has slot i.
        rows: entries of a slot's ring.
        device: of the states.

    Raises:
        ValueError: the tensors do not fit together.
    """

    def __init__(
        self,
        query_start: torch.Tensor,
        kv_len: torch.Tensor,
        slots: torch.Tensor | None,
        rows: int,
        device: torch.device,
    ) -> None:
        self.rows, self.device = rows, device
        self.starts = query_start.numpy().astype(np.int64)
        self.counts = np.diff(self.starts)
        if len(kv_len) != len(self.counts):
            raise ValueError(f"kv_len has {len(kv_len)} entries, and there are {len(self.counts)} sequences")
        self.first = kv_len.numpy().astype(np.int64) - self.counts
        self.slots = (np.arange(len(self.counts)) if slots is None else slots.numpy()).astype(np.int64)
        if len(self.slots) != len(self.counts) or rows < 1:
            raise ValueError(
                f"a walk takes a slot for each of {len(self.counts)} sequences and rings of at least 1 entry, got "
                f"{len(self.slots)} slots and {rows} entries"
            )
        self.windows: dict[int, tuple[torch.Tensor, ...]] = {}

    def move(self, kv_len: torch.Tensor, slots: torch.Tensor | None) -> None:
        """Move to another step with the same numbers of tokens. The arrays that kernels read keep their addresses.

        Raises:
            ValueError: there are other numbers of sequences, positions before 0, or two sequences with one slot.
        """
        count = len(self.counts)
        np.subtract(kv_len.numpy(), self.counts, out=self.first)
        self.slots[:] = np.arange(count) if slots is None else slots.numpy()
        for name in ("goes_on", "has_own_slots", "places", "order", "read", "fresh", "moments"):
            self.__dict__.pop(name, None)
        self.windows.clear()
        if not self.goes_on or not self.has_own_slots:
            raise ValueError(
                "each sequence must have a slot of its own and positions from 0 on, got the slots "
                f"{self.slots.tolist()} and the first positions {self.first.tolist()}"
            )

    @cached_property
    def goes_on(self) -> bool:
        """Return whether the sequences follow one another from the first token on, at positions that exist."""
        return not int(self.starts[0]) and bool((self.counts >= 0).all() and (self.first >= 0).all())

    @cached_property
    def has_own_slots(self) -> bool:
        """Return whether no two sequences have one slot. Padding has none."""
        taken = self.slots[self.slots >= 0].tolist()
        return len(set(taken)) == len(taken)

    @cached_property
    def places(self) -> WalkPlaces:
        """Return what kernels on a GPU read, by one copy, for which the host does not wait."""
        arrays = (self.starts.astype(np.int32), (self.first + self.counts).astype(np.int32), self.slots)
        return WalkPlaces(*together([torch.from_numpy(array) for array in arrays], self.device))

    @cached_property
    def order(self) -> np.ndarray:
        """Return the sequences, the longest first."""
        return np.argsort(-self.counts, kind="stable")

    @cached_property
    def read(self) -> torch.Tensor:
        """Return the entries that the sequences read, in `order`."""
        return self._on_device(self.slots[self.order] * self.rows + self.first[self.order] % self.rows)

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Return whether each sequence starts now, in `order`."""
        return self._on_device(self.first[self.order] == 0)

    @cached_property
    def moments(self) -> list[Moment]:
        """Return the batch's first tokens, then its second ones, and so on."""
        return [self._make_moment(self.order, j) for j in range(int(self.counts.max(initial=0)))]

    def check_memory(self, memory: torch.Tensor, padded: bool = False) -> None:
        """Raise ValueError unless the memory has the entries of all slots: a kernel reads it by address. padded: a slot
        may be −1."""
        need = (int(self.slots.max(initial=-1)) + 1) * self.rows
        if len(memory) < need or not memory.is_contiguous() or self.slots.min(initial=0) < -padded:
            raise ValueError(f"memory must be contiguous with at least {need} entries, got {len(memory)}")

    def check_call(self, tokens: int, memory: torch.Tensor, padded: bool = False) -> None:
        """Raise ValueError unless a kernel can walk along this number of tokens in this memory.

        Each sequence must have a slot of its own, and the memory the entries of all slots. padded: see check_memory.
        """
        if int(self.starts[-1]) != tokens or not self.goes_on:
            raise ValueError(f"the walk must have {tokens} tokens, got query_start {self.starts.tolist()}")
        if not self.has_own_slots:
            raise ValueError(f"each sequence must have a slot of its own, got {self.slots.tolist()}")
        self.check_memory(memory, padded)

    def _make_moment(self, order: np.ndarray, j: int) -> Moment:
        active = order[self.counts[order] > j]
        kept = np.flatnonzero(j + 1 > self.counts[active] - self.rows)
        owners = active[kept]
        to = self.slots[owners] * self.rows + (self.first[owners] + j + 1) % self.rows
        return Moment(*map(self._on_device, (self.starts[active] + j, kept, to)))

    def make_window(self, width: int) -> tuple[torch.Tensor, ...]:
        """Return what a convolution over `width` tokens reads and writes, given rows that are the batch's T tokens and
        then the width − 1 tokens before each sequence.

        Returns:
            - int64 [T, width]: the rows that each token sees
            - int64 [M, width − 1] and [M]: the rows to write to memory, and where
            - int64 [N] and bool [N]: where memory has the tokens before each sequence, and whether the sequence starts
              now
        """
        if width not in self.windows:
            back, total = width - 1, int(self.starts[-1])
            owner = np.repeat(np.arange(len(self.counts)), self.counts)
            offset = np.arange(total) - self.starts[owner]
            seen = self._locate_tokens(owner, offset - back, width, back, total)
            end = np.concatenate([np.arange(max(1, c - self.rows + 1), c + 1) for c in self.counts] or [[]]).astype(int)
            owner = np.repeat(np.arange(len(self.counts)), np.minimum(self.counts, self.rows))
            left = self._locate_tokens(owner, end - back, back, back, total)
            to = self.slots[owner] * self.rows + (self.first[owner] + end) % self.rows
            before = self.slots * self.rows + self.first % self.rows
            self.windows[width] = tuple(map(self._on_device, (seen, left, to, before, self.first == 0)))
        return self.windows[width]

    def _locate_tokens(self, owner: np.ndarray, first: np.ndarray, width: int, back: int, total: int) -> np.ndarray:
        """Return rows of `width` tokens of each owner, from the offset `first` on, which may lie before the batch's
        tokens."""
        offset = first[:, None] + np.arange(width)
        return np.where(
            offset >= 0, self.starts[owner][:, None] + offset, total + owner[:, None] * back + offset + back
        )

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class PlacedWalk:
    """A walk whose sequences the host does not know, such as that of a CUDA graph. Only kernels on a GPU read it."""

    places: WalkPlaces
    rows: int

    def check_call(self, tokens: int, memory: torch.Tensor, padded: bool = True) -> None:
        """Raise ValueError unless the memory is contiguous. The kernels themselves skip slots that it does not have."""
        if not memory.is_contiguous() or not padded:
            raise ValueError(f"memory must be contiguous, on a GPU, for {tokens} tokens that the host does not know")
