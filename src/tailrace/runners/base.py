"""What a model runner is: token ids → logits. Knows nothing of requests, sampling or text.

A step is one flat batch of tokens: prefill chunks and single decode tokens side by side, no padding. The KV cache is
paged: block b, offset o hold the key and value of one position of one sequence. A sequence's blocks are listed in its
row of `block_tables`. The engine decides which sequence owns a block; the runner owns the memory.

Symbols: T tokens in the step, N sequences in the step, L wanted logits, V vocabulary, B blocks per table row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailrace.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input. All tensors but `previous` are on the CPU; the runner moves what it needs. Sequence i owns the
    tokens query_start[i] … query_start[i + 1] − 1, which are the last of its kv_len[i] positions.

    - token_ids: int64 [T]; −1 − i refers to previous[i]. Runners use `input_ids`, which resolves these references.
    - positions: int64 [T], 0-based within the sequence.
    - slot_mapping: int64 [T], where the token's key and value go: block · block_size + offset.
    - query_start: int32 [N + 1].
    - kv_len: int32 [N], positions in the cache once this step has written its own.
    - block_tables: int32 [N, B], padded with 0.
    - wanted: int64 [L], indices into the T tokens whose next-token logits are wanted.
    - previous: int64 [P] on the runner's device, tokens that the previous step sampled. The host does not know them
      when this step is launched. −1 where sampling failed. None: nothing refers to it.
    - slots: int64 [N], the place of each sequence's state, for runners with states (StatefulRunner); None: 0, 1, 2, …
    - adapted: per LoRA adapter in use: its number, and int64 indices into the T tokens. Other tokens use the model's
      own weights.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor
    block_tables: torch.Tensor
    wanted: torch.Tensor
    previous: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    adapted: tuple[tuple[int, torch.Tensor], ...] = ()

    def input_ids(self, device: torch.device) -> torch.Tensor:
        """int64 [T] on the runner's device, with references resolved. A reference to a failed sample gives token 0; its
        sequence has ended."""
        ids = self.token_ids.to(device, non_blocking=True)
        if self.previous is None:
            return ids
        return torch.where(ids < 0, self.previous[(-1 - ids).clamp_min(0)].clamp_min(0), ids)


class ModelRunner(ABC):
    """Anything that turns a Batch into logits. The attributes are all that the engine reads of a runner.

    vocab_size: V. max_model_len: the most positions of a sequence. device, dtype: of the logits. On a GPU the sampler's
    kernels are compiled for this dtype at start, and steps overlap. adapters: the names of LoRA adapters that
    `forward` applies by Batch.adapted; the first is number 1. "" is a retired adapter.
    """

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        device: torch.device,
        dtype: torch.dtype,
        adapters: tuple[str, ...] = (),
    ) -> None:
        self.vocab_size, self.max_model_len = vocab_size, max_model_len
        self.device, self.dtype, self.adapters = device, dtype, adapters

    @property
    def block_bytes(self) -> int:
        """Bytes of KV cache per block over all layers (0: no cache needed)."""
        return 0

    @abstractmethod
    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache. Called once, before the first forward."""

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Write the keys and values of all T tokens, attend causally within each sequence, and return the logits [L, V]
        of the wanted tokens, in the model's dtype, on its device. The next call may overwrite the result."""

    @property
    def takes_adapters(self) -> bool:
        """True if adapters may come at run time."""
        return False

    def read_adapter(self, name: str, folder: Path) -> Any:
        """Return an adapter's weights for `add_adapter`. Called in a thread of its own.

        Raises:
            ModelLoadError: the folder has no adapter that fits the model.
        """
        raise ModelLoadError(f"{type(self).__name__} applies no adapters that come at run time")

    def add_adapter(self, name: str, weights: Any) -> int:
        """Append an adapter to `adapters`. Return the bytes that it takes of the machine's memory. Called between two
        steps."""
        raise NotImplementedError

    def retire_adapter(self, name: str) -> None:
        """Put "" in the place of a name in `adapters`; requests that run keep its weights."""
        raise NotImplementedError

    def drop_adapter(self, number: int) -> None:
        """Free the weights of a retired adapter."""
        raise NotImplementedError

    @abstractmethod
    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer: copy-on-write of a shared, partly filled block."""


class StatefulRunner(ModelRunner):
    """A runner with layers that keep a state of fixed size per sequence beside or instead of keys and values.

    The state of a slot is a ring of entries, one per position: a pass begins with the entry of its first position and
    leaves the entries of its last positions behind. So a sequence can go back by as many positions as the ring has
    entries, less one. A pass from position 0 on begins with an empty state.

    The entry of position p is row p mod `rows` of the ring. Entries are numbered: first the rings, slot by slot, then
    those for snapshots, which no pass reads or writes.
    """

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of one entry over all layers (0: the model has no such layers)."""

    @abstractmethod
    def allocate_states(self, slots: int, rows: int, snapshots: int) -> None:
        """Make rings of `rows` entries, at least 2, and entries for snapshots. Called once, before `allocate`, if
        state_bytes is not 0."""

    @abstractmethod
    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """Copy entries (source, target), one after the other: a source may be an earlier target."""


class LayeredRunner(ModelRunner):
    """A runner whose layers can be observed, for drafters that use the target's hidden states (drafting/).

    num_layers: L. hidden_size: H. Hidden states have the dtype and the device of the logits.
    """

    num_layers: int
    hidden_size: int

    @property
    @abstractmethod
    def hidden(self) -> torch.Tensor:
        """[T, C·H]: outputs of the captured layers in the last `forward`, side by side. The next pass replaces the
        tensor."""

    @abstractmethod
    def capture(self, layers: tuple[int, ...]) -> None:
        """Let `forward` keep these layers' outputs in `hidden` from now on.

        0 … L − 1 are the decoder layers, L is the input of the output head. (): nothing is kept, at no cost.

        Raises:
            ValueError: there is no such layer, or one is named twice.
        """

    @abstractmethod
    def forward_layers(self, batch: Batch, layers: int) -> torch.Tensor:
        """As `forward`, through the first `layers` layers, then the final norm and the output head. Writes the keys and
        values of these layers only, and does not change `hidden`.

        Raises:
            ValueError: layers is not in 1 … L.
        """

    @abstractmethod
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [n] → rows of the embedding's weights, [n, H], before any scaling by the model."""

    @abstractmethod
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output head: [n, H], normed → logits [n, V]. Row-invariant on the CPU."""
