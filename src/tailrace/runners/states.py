"""The memory of layers that keep a state of fixed size per sequence, and how a pass walks along its sequences.

The state of a slot is a ring of `rows` entries: the state after p tokens is in entry p mod rows. A pass that computes
the tokens first … end − 1 of a sequence reads entry `first` and writes the last `rows` states, or as many as it has
tokens. So a sequence can go back by up to rows − 1 positions: rejected drafts, and a token that was computed and then
not used, have no effect. Position 0 reads zeros: a new owner of a slot sees nothing of the old one.

Knows nothing of models; runners/recurrent.py has the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tailrace.errors import ModelLoadError
from tailrace.runners.base import Batch

Shape = tuple[tuple[int, ...], torch.dtype]


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
    """How a pass goes along its sequences: the same for all layers. The longest sequence comes first.

    Args:
        rows: entries of a slot's ring.
    """

    def __init__(self, batch: Batch, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.starts = batch.query_start.numpy().astype(np.int64)
        self.counts = np.diff(self.starts)
        self.first = batch.kv_len.numpy().astype(np.int64) - self.counts
        slots = np.arange(len(self.counts)) if batch.slots is None else batch.slots.numpy()
        self.slots = slots.astype(np.int64)
        order = np.argsort(-self.counts, kind="stable")
        self.read = self._on_device(self.slots[order] * rows + self.first[order] % rows)
        self.fresh = self._on_device(self.first[order] == 0)
        self.moments = [self._make_moment(order, j) for j in range(int(self.counts.max(initial=0)))]
        self.windows: dict[int, tuple[torch.Tensor, ...]] = {}

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


@dataclass(slots=True)
class RecurrentState:
    """The one mutable state of these layers: the pass being computed, and the memory.

    - shapes: of each layer's states, for one entry; known once a pass without memory has run.
    - memory: [slots · rows + snapshots, …].
    - exact: a pass without memory computes the model's own operations in float32 (runners/reproduction.py).
    """

    walk: Walk | None = None
    shapes: dict[tuple[int, str], Shape] = field(default_factory=dict)
    memory: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    rows: int = 0
    exact: bool = False

    @property
    def entry_bytes(self) -> int:
        """Return the bytes of one entry over all layers."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.shapes.values())

    def allocate(self, slots: int, rows: int, device: torch.device, snapshots: int = 0) -> None:
        """Allocate memory for this number of slots, and for snapshots behind them. The contents are undefined."""
        self.rows = rows
        self.memory = {
            place: torch.empty((slots * rows + snapshots, *shape), dtype=dtype, device=device)
            for place, (shape, dtype) in self.shapes.items()
        }

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy entries (source, target), one after the other."""
        for tensor in self.memory.values():
            for source, target in pairs:
                tensor[target] = tensor[source]


@dataclass(slots=True)
class RecurrentLayer:
    """One module's share of the state. name: of its class. noted: the states of the dense pass that runs."""

    shared: RecurrentState
    index: int
    name: str
    noted: set[str] = field(default_factory=set)

    def note(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Record the shape and dtype of an entry of this state, in a dense pass at load.

        Raises:
            ModelLoadError: the module has two states of this name.
        """
        if name in self.noted:
            raise ModelLoadError(f"{self.name} walks along a sequence twice ({name}), which is not supported")
        self.noted.add(name)
        self.shared.shapes[self.index, name] = (shape, dtype)

    def own(self, original: Callable[..., Any], *parts: torch.Tensor | None, **options: Any) -> Any:
        """Call the model's own operation, on one whole sequence."""
        if not self.shared.exact:
            return original(*parts, **options)
        found = original(*map(widen_tensor, parts), **{name: widen_tensor(value) for name, value in options.items()})
        out, *rest = found if isinstance(found, tuple) else (found,)
        assert parts[0] is not None
        out = out.to(parts[0].dtype)
        return (out, *rest) if isinstance(found, tuple) else out

    def scan_sequences(
        self, name: str, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], out: torch.Tensor
    ) -> None:
        """Walk along all sequences: step(states [n, …], rows [n]) changes the states in place and returns out[rows]."""
        walk, memory = self.shared.walk, self.shared.memory[self.index, name]
        assert walk is not None
        states = memory[walk.read]
        states[walk.fresh] = 0.0
        for moment in walk.moments:
            active = states[: len(moment.rows)]
            out[moment.rows] = step(active, moment.rows)
            if len(moment.kept):
                memory[moment.to] = active[moment.kept]


def widen_tensor(value: Any) -> Any:
    """Return a tensor of numbers in float32; anything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
