"""Indexers of sparse attention in a flat batch: DeepSeek V3.2's (arXiv 2512.02556) and its kin, and MiniMax M3's.

An indexer scores the positions of its sequence and returns those that each token may see. A module's own code runs
unchanged, once for each sequence of the batch. In place of transformers' cache it gets the keys of its sequence out of
our paged memory. Knows nothing of models: an indexer is a module that gives its keys to a cache.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tailrace.errors import ModelLoadError
from tailrace.runners import attention
from tailrace.runners.attention import AttentionState, SequenceSpan

KEEPS = ("update_indexer", "update_index")  # the methods of transformers' caches that take an indexer's keys
ATTRIBUTE = "tailrace_indexer"  # where a module carries its IndexerLayer
MASK_MAKER = "build_attention_mask_from_topk"  # a method of attention modules that takes `topk_indices` (GLM-5.3)
MASKING = "Qwen4ExpTextQSAIndexer"  # returns a mask, and reads the rotary tables of all positions
NO_KEYS = torch.empty(0)


@dataclass(slots=True)
class RotaryTables:
    """The cosines and sines of a model's positions from 0 on, made by its own module. They grow with the longest
    sequence."""

    rotary: Any
    length: int = 0
    tables: tuple[torch.Tensor, ...] = ()

    def take(self, length: int, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tables of the first `length` positions, [1, length, D]."""
        if length > self.length:
            self.length = max(length, 2 * self.length)
            at = torch.arange(self.length, device=like.device)
            self.tables = tuple(self.rotary(like, at[None]))
        return tuple(table[:, :length] for table in self.tables)


@dataclass(frozen=True, slots=True)
class SelectedMask:
    """Takes the place of the mask that an indexer returns, bool [1, 1, T, positions]. The module's own code joins it
    with the causal mask: the result of any operation on both is the selected positions."""

    seen: torch.Tensor

    def __invert__(self) -> SelectedMask:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = next(each for each in args if isinstance(each, SelectedMask))
        return attention.SelectedPositions(flags=own.seen[:, 0])


@dataclass(slots=True)
class IndexerLayer:
    """One indexer.

    - index: of its memory in `shared.index_keys`.
    - forward, parameters: the module's own, and the names of its parameters.
    - cache_name: its parameter for the cache.
    - config: the model's; it says whose attention runs.
    - tables: of all positions, where the module returns a mask and reads them. None: it returns positions.
    - dim, dtype: of a position's key.
    """

    shared: AttentionState
    index: int
    forward: Callable[..., torch.Tensor]
    parameters: inspect.Signature
    cache_name: str
    config: Any = None
    tables: RotaryTables | None = None
    dim: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def position_bytes(self) -> int:
        """Return the bytes of a position's key."""
        return self.dim * self.dtype.itemsize

    def select(self, *args: Any, **options: Any) -> torch.Tensor | SelectedMask:
        """Call the module's own `forward` for each sequence of the pass. In a dense pass at load, call it once.

        Returns [1, T, K] or [1, H, T, K]: positions or blocks. −1 fills the places that a sequence does not need. Or a
        mask; in a pass with the model's own attention, the module's own.
        """
        given = self.parameters.bind(*args, **options).arguments
        with EarliestOfTies():
            if self.shared.spans is None:
                found = [self.forward(**given | {self.cache_name: NotedKeys(self)})]
            else:
                found = self.select_each(given, self.shared.spans)
        most, rest = max(part.shape[-1] for part in found), 0 if self.tables else -1
        chosen = torch.cat([F.pad(part, (0, most - part.shape[-1]), value=rest) for part in found], -2)
        return SelectedMask(chosen) if self.tables and self.config._attn_implementation != "eager" else chosen

    def select_each(self, given: dict[str, Any], spans: list[SequenceSpan]) -> list[torch.Tensor]:
        """Return what the module's own `forward` returns for each sequence."""
        hidden, found = given["hidden_states"], []
        for number, span in enumerate(spans):
            own = {name: cut_tokens(value, span, hidden.shape[1]) for name, value in given.items()}
            own[self.cache_name] = PagedKeys(self, number, span)
            if self.takes_mask and not is_padding_mask(given.get("attention_mask")):
                own["attention_mask"] = make_bias(span, hidden)
            if self.tables:
                own["position_embeddings"] = self.tables.take(span.length, hidden)
                own["attention_mask"] = own["attention_mask"][None]
            found.append(self.forward(**own))
        return found

    @property
    def takes_mask(self) -> bool:
        """The module's own `forward` takes the mask."""
        return "attention_mask" in self.parameters.parameters


class EarliestOfTies(TorchFunctionMode):
    """Inside this context topk takes the earliest of equal numbers. torch takes any of them: which ones depends on the
    tensor's shape, and so on how a prompt is cut. An indexer's scores are often exactly 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chosen = take_earliest if func in (torch.topk, torch.Tensor.topk) else func
        return chosen(*args, **(kwargs or {}))


def take_earliest(values: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return what torch.topk returns, with the earliest of equal numbers."""
    order = values.sort(dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((order.values.narrow(dim, 0, k), order.indices.narrow(dim, 0, k)))


class KeysCache(ABC):
    """Stands for transformers' cache in an indexer. It is the cache of each layer, and the layer.

    Attributes:
        keys: of all positions, once the pass's are in.
    """

    keys: torch.Tensor

    @abstractmethod
    def update_indexer(self, keys: torch.Tensor, layer_idx: int = 0) -> torch.Tensor:
        """Take the keys of the pass's tokens […, tokens, D]; return those of all positions […, positions, D]."""

    def update_index(self, keys: torch.Tensor) -> torch.Tensor:
        return self.update_indexer(keys)

    def get_seq_length(self) -> int:
        return self.keys.shape[-2]

    @property
    def layers(self) -> KeysCache:
        return self

    def __getitem__(self, index: int) -> KeysCache:
        return self


@dataclass(slots=True)
class NotedKeys(KeysCache):
    """The cache of a dense pass: the layer notes what a position's key looks like."""

    layer: IndexerLayer
    keys: torch.Tensor = NO_KEYS

    def update_indexer(self, keys: torch.Tensor, layer_idx: int = 0) -> torch.Tensor:
        self.layer.dim, self.layer.dtype = keys.shape[-1], keys.dtype
        self.keys = keys
        return keys


@dataclass(slots=True)
class PagedKeys(KeysCache):
    """The cache of one sequence in a flat batch, in paged memory."""

    layer: IndexerLayer
    sequence: int
    span: SequenceSpan
    keys: torch.Tensor = NO_KEYS

    def update_indexer(self, keys: torch.Tensor, layer_idx: int = 0) -> torch.Tensor:
        shared, span = self.layer.shared, self.span
        step, memory = shared.step, shared.index_keys[self.layer.index]
        assert step is not None, "an indexer outside of a forward pass"
        memory.view(-1, self.layer.dim)[step.slot_mapping[span.begin : span.end]] = keys.reshape(-1, self.layer.dim)
        blocks = step.block_tables[self.sequence, : -(-span.length // memory.shape[1])].long()
        found = memory[blocks].flatten(0, 1)[: span.length]
        self.keys = found.view(*keys.shape[:-2], span.length, self.layer.dim)
        return self.keys


def cut_tokens(value: Any, span: SequenceSpan, tokens: int) -> Any:
    """Return the part of an argument that belongs to the sequence's tokens: tensors [1, tokens, …], also in tuples."""
    if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == tokens:
        return value[:, span.begin : span.end]
    if isinstance(value, tuple):
        return tuple(cut_tokens(part, span, tokens) for part in value)
    return value


def is_padding_mask(mask: Any) -> bool:
    """Return True for a mask that tells tokens from padding, [1, tokens], and says nothing about positions."""
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() == 2


def make_bias(span: SequenceSpan, like: torch.Tensor) -> torch.Tensor:
    """Return the causal mask of one sequence as an indexer takes it: [1, tokens, positions], 0 or the lowest number."""
    at = torch.arange(span.length, device=like.device)
    hidden = at[None] > at[span.length - (span.end - span.begin) :, None]
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(
        hidden, torch.finfo(like.dtype).min
    )[None]


def is_indexer(module: nn.Module) -> bool:
    """Return True if the module's own `forward` gives keys to a cache for indexers."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and any(name in code.co_names for name in KEEPS)


def attach_indexers(model: Any, shared: AttentionState) -> list[IndexerLayer]:
    """Let every indexer of the model keep its keys in our memory.

    Raises:
        ModelLoadError: an indexer's `forward` takes no cache.
    """
    layers: list[IndexerLayer] = []
    tables: RotaryTables | None = None
    for module in model.modules():
        if not is_indexer(module):
            continue
        own = partial(inspect.unwrap(type(module).forward), module)
        signature = inspect.signature(own)
        name = attention.find_cache_name(own)
        if name is None or "hidden_states" not in signature.parameters:
            raise ModelLoadError(f"{type(module).__name__} is an indexer that takes no cache, which is not supported")
        layers.append(layer := IndexerLayer(shared, len(layers), own, signature, name))
        if type(module).__name__ == MASKING:
            layer.config = model.config.get_text_config()
            tables = layer.tables = tables or RotaryTables(model.get_decoder().rotary_emb)
        setattr(module, ATTRIBUTE, layer)
        module.forward = layer.select
    prepare_owners(model)
    return layers


def prepare_owners(model: Any) -> None:
    """Let the attention modules that own an indexer know its blocks, and give them a mask to pass on. A module that
    makes a mask out of the selected positions passes the positions on."""
    for module in model.modules():
        layer = getattr(module, attention.ATTRIBUTE, None)
        if layer is not None and hasattr(module, MASK_MAKER):
            setattr(module, MASK_MAKER, partial(keep_positions, module))
        for child in module.children():
            indexer: IndexerLayer | None = getattr(child, ATTRIBUTE, None)
            if layer is None or indexer is None:
                continue
            layer.selected_block = int(getattr(child, "block_size", 0))
            if indexer.takes_mask:
                module.register_forward_pre_hook(with_mask, with_kwargs=True)


def keep_positions(module: Any, topk_indices: torch.Tensor, **options: Any) -> Any:
    """Return the selected positions [1, T, K] in place of a mask; the module's own mask in a pass with the model's own
    attention."""
    if module.config._attn_implementation == "eager":
        return getattr(type(module), MASK_MAKER)(module, topk_indices=topk_indices, **options)
    return attention.SelectedPositions(topk_indices)


def with_mask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """A forward pre-hook: a module whose code takes a part of the mask gets one where there is none."""
    missing = kwargs.get("attention_mask") is None
    return (args, kwargs | {"attention_mask": attention.STAND_IN}) if missing else None
