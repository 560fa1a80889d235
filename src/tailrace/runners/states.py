"""The memory of layers that keep a state of fixed size per sequence.

kernels/walk.py says which entry of the memory holds which state. Knows nothing of models; runners/recurrent.py has the
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tailrace.errors import ModelLoadError
from tailrace.kernels.walk import PlacedWalk, Walk, WalkPlaces
from tailrace.runners.base import Batch

Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(slots=True)
class RecurrentState:
    """The one mutable state of these layers: the pass being computed, and the memory.

    - shapes: of each layer's states, for one entry; known once a pass without memory has run.
    - memory: [slots · rows + snapshots, …].
    - slots: that the memory has.
    - exact: a pass without memory computes the model's own operations in float32 (runners/reproduction.py).
    """

    walk: Walk | PlacedWalk | None = None
    shapes: dict[tuple[int, str], Shape] = field(default_factory=dict)
    memory: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    rows: int = 0
    slots: int = 0
    exact: bool = False

    @property
    def entry_bytes(self) -> int:
        """Return the bytes of one entry over all layers."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.shapes.values())

    def allocate(self, slots: int, rows: int, device: torch.device, snapshots: int = 0) -> None:
        """Allocate memory for this number of slots, and for snapshots behind them. The contents are undefined."""
        self.rows, self.slots = rows, slots
        self.memory = {
            place: torch.empty((slots * rows + snapshots, *shape), dtype=dtype, device=device)
            for place, (shape, dtype) in self.shapes.items()
        }

    def plan_walk(self, batch: Batch, device: torch.device, walk: Walk | None = None) -> Walk | None:
        """Return how a pass goes along the batch's sequences; None for a model without states.

        walk: of an earlier pass with as many tokens per sequence. It is moved and returned: recorded calls read its
        arrays.

        Raises:
            ValueError: the walk can't be moved there, or the memory has no such slot.
        """
        if not self.shapes:
            return None
        if walk is None:
            return Walk(batch.query_start, batch.kv_len, batch.slots, self.rows, device)
        walk.move(batch.kv_len, batch.slots)
        for memory in self.memory.values():
            walk.check_memory(memory)
        return walk

    def place_walk(self, batch: Batch) -> PlacedWalk | None:
        """Return how a pass goes along the sequences of a batch whose tensors, slots too, are on the device; None for a
        model without states."""
        if not self.shapes or batch.slots is None:
            return None
        return PlacedWalk(WalkPlaces(batch.query_start, batch.kv_len, batch.slots), self.rows)

    @contextmanager
    def walking(self, walk: Walk | PlacedWalk | None) -> Iterator[None]:
        """Inside this context a pass goes along the sequences like this."""
        self.walk = walk
        try:
            yield
        finally:
            self.walk = None

    def spread(self, slots: int) -> None:
        """Copy the first slot's ring to the next ones, up to this number of slots: a trial's sequences are equal."""
        for tensor in self.memory.values():
            rings = tensor[: slots * self.rows].unflatten(0, (slots, self.rows))
            rings[1:] = rings[:1]

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy entries (source, target), one after the other."""
        runs = join_pairs(pairs)
        for tensor in self.memory.values():
            for source, target, count in runs:
                tensor[target : target + count] = tensor[source : source + count]


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

    def find_states(self, name: str) -> tuple[torch.Tensor, Walk | PlacedWalk]:
        """Return the memory of this state, and the walk of the pass being computed."""
        assert self.shared.walk is not None
        return self.shared.memory[self.index, name], self.shared.walk


def join_pairs(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return the pairs as (source, target, count): a ring is one copy, not one for each entry."""
    runs: list[tuple[int, int, int]] = []
    for source, target in pairs:
        first, to, count = runs[-1] if runs else (0, 0, 0)
        if runs and (source, target) == (first + count, to + count) and abs(first - to) > count:
            runs[-1] = first, to, count + 1
        else:
            runs.append((source, target, 1))
    return runs


def widen_tensor(value: Any) -> Any:
    """Return a tensor of numbers in float32; anything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
