"""Connects transformers' attention interface to the paged KV cache. A model loaded with attn_implementation="tailrace"
calls `forward_attention` in every layer. The attention module carries its AttentionLayer, which knows the layer's
cache and the current step.

Knows nothing of models; runners/paged_model.py attaches the layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from tailrace import kernels
from tailrace.errors import ModelLoadError

NAME = "tailrace"  # the name under which the function is registered
ATTRIBUTE = "tailrace_layer"  # where a module carries its AttentionLayer
CACHES = ("cache", "past_key_values")  # the names of the parameter for the cache; from transformers 5.24 on the first
STAND_IN = torch.zeros(1, 1, 1, 1)  # stands for the mask where a module's own code asks for one; nobody reads it


class SelectedPositions(NamedTuple):
    """Takes the place of a mask: the positions that each token sees.

    - indices: [1, T, K]. Numbers below 0 are ignored.
    - flags: in place of `indices`, bool [1, T, positions].
    """

    indices: torch.Tensor | None = None
    flags: torch.Tensor | None = None


@dataclass(slots=True)
class AttentionStep:
    """The inputs that the layers of one forward pass share, on the runner's device; see runners.base.Batch."""

    slot_mapping: torch.Tensor
    query_start: torch.Tensor
    kv_len: torch.Tensor
    block_tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence of a pass: its tokens begin … end − 1 of the flat batch are the last of `length` positions."""

    begin: int
    end: int
    length: int


@dataclass(slots=True)
class AttentionState:
    """The one mutable state of paged attention: the step being computed, and every layer's cache.

    positions: of the pass's tokens, int64 [T]. own_keys: during the pass that finds the layers' shapes, the layers with
    keys of their own, and these keys. batch_invariant: see kernels.paged_attention. spans: the sequences of the pass,
    for a model with indexers. index_keys: of each indexer, [blocks, block_size, D].
    """

    step: AttentionStep | None = None
    positions: torch.Tensor | None = None
    caches: list[kernels.KVCache] = field(default_factory=list)
    own_keys: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    batch_invariant: bool = False
    spans: list[SequenceSpan] | None = None
    index_keys: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class AttentionLayer:
    """The layer of one attention module: its cache, and the options of its attention (runners/probe.py finds them).

    - index: the index of the layer's cache.
    - source: index of the layer whose keys and values this layer reads. This is the layer's own index, except in models
      that share keys and values between layers (Gemma 3n).
    - window, softcap, chunk: see kernels.paged_attention.
    - selected_block: positions of each block that an indexer selects (runners/indexers.py); 0 if it selects no blocks.
    """

    shared: AttentionState
    index: int
    chunk: int = 0
    source: int = -1
    calls: int = 0
    heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    scale: float = 0.0
    window: int = 0
    softcap: float = 0.0
    selected_block: int = 0

    def position_bytes(self, itemsize: int, scale_bytes: int = 0) -> int:
        """Return the bytes of a position's keys and values in the cache, given the bytes of a number and of a head's
        scale. Return 0 if the cache is another layer's."""
        each = (self.head_dim + self.value_dim) * itemsize + 2 * scale_bytes
        return self.heads * each if self.source == self.index else 0

    def note(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the shapes of the keys and values [1, Hkv, T, D], and the earlier layer of the pass that has the same
        ones."""
        self.heads, self.head_dim, self.value_dim = key.shape[1], key.shape[-1], value.shape[-1]
        seen = self.shared.own_keys
        self.source = next((index for index, other in seen if other.data_ptr() == key.data_ptr()), self.index)
        if self.source == self.index:
            seen.append((self.index, key))

    def attend_cached(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None = None,
        selected: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Store key [T, Hkv, D] and value [T, Hkv, Dv]; return the attention of query [T, Hq, D] → [T, Hq, Dv]."""
        step = self.shared.step
        assert step is not None, "attention outside of a forward pass"
        cache = self.shared.caches[self.source]
        if self.source == self.index:
            kernels.store_kv(cache, key, value, step.slot_mapping)
        return kernels.paged_attention(
            query,
            cache,
            step.block_tables,
            step.query_start,
            step.kv_len,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            chunk=self.chunk,
            sinks=sinks,
            batch_invariant=self.shared.batch_invariant,
            selected=selected,
        )


class Offsets:
    """Stands for transformers' cache in a module that derives its tokens' positions from it: a token's place in the
    flat batch plus its offset is its position. Keys and values pass through; `AttentionLayer.attend_cached` stores
    them."""

    def __init__(self, positions: torch.Tensor) -> None:
        self.offsets = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        return self.offsets

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value


def note_positions(shared: AttentionState, model: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """A forward pre-hook of the whole model, for `with_positions`."""
    ids = kwargs.get("position_ids")
    shared.positions = None if ids is None else ids[0]


def with_positions(shared: AttentionState, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """A forward pre-hook: a module that counts positions by itself gets them from Offsets (Llama 4's temperature
    tuning)."""
    name = find_cache_name(inspect.unwrap(type(module).forward))
    if shared.positions is None or name is None:
        return None
    return args, kwargs | {name: Offsets(shared.positions)}


def find_cache_name(forward: Callable[..., Any]) -> str | None:
    """Return the name of a function's parameter for the cache; None if it takes none."""
    taken = inspect.signature(forward).parameters
    return next((name for name in CACHES if name in taken), None)


NAMES = ("Attention", "MLA")  # of classes that attend


def attach_layers(model: Any, shared: AttentionState, other: Callable[[Any], bool]) -> list[AttentionLayer]:
    """Give every attention module its AttentionLayer; return them in the order of their layers. Of a model that also
    sees or hears, those that read text, and not those that look at the rest. other: it is called attention, and keeps
    no keys."""
    found: dict[int, torch.nn.Module] = {}
    composite = model.config.get_text_config() is not model.config
    for module in (model.get_decoder() if composite else model).modules():
        index = getattr(module, "layer_idx", None)
        name = type(module).__name__
        if not isinstance(index, int) or not any(each in name for each in NAMES) or "CrossAttention" in name:
            continue
        if other(module):
            continue
        if index not in found or any(module is inner for inner in found[index].modules()):  # the innermost
            found[index] = module
    layers = [AttentionLayer(shared, place) for place in range(len(found))]
    for layer, (_, module) in zip(layers, sorted(found.items()), strict=True):
        setattr(module, ATTRIBUTE, layer)
        if getattr(module, "attn_temperature_tuning", False):
            module.register_forward_pre_hook(partial(with_positions, shared), with_kwargs=True)
    if any(getattr(module, "attn_temperature_tuning", False) for module in found.values()):
        model.register_forward_pre_hook(partial(note_positions, shared), with_kwargs=True)
    return layers


def layer_of(module: torch.nn.Module) -> AttentionLayer:
    """The AttentionLayer that the module carries.

    Raises:
        ModelLoadError: it carries none.
    """
    layer: AttentionLayer | None = getattr(module, ATTRIBUTE, None)
    if layer is None:
        raise ModelLoadError(
            f"{type(module).__name__} calls attention but belongs to no single decoder layer (several may share it), "
            "which is not supported"
        )
    return layer


def selection_of(layer: AttentionLayer, options: dict[str, Any], positions: int) -> torch.Tensor | None:
    """Return which of so many positions an attention call may see, as `selected` of kernels.paged_attention: by its
    options `indices` [1, T, K] or `block_indices` [1, Hkv, T, K], in which numbers below 0 are ignored, or `flags`
    [1, T, positions]."""
    if (seen := options.get("flags")) is not None:
        return kernels.pack_bits(seen[0][:, None])
    if (blocks := options.get("block_indices")) is not None:
        chosen, each = blocks[0].transpose(0, 1), layer.selected_block
    elif (places := options.get("indices")) is not None:
        chosen, each = places[0][:, None], 1
    else:
        return None
    count = -(-positions // each)
    flags = torch.zeros((*chosen.shape[:-1], count + 1), dtype=torch.bool, device=chosen.device)
    flags.scatter_(-1, chosen.long().masked_fill(chosen < 0, count), True)
    return kernels.pack_bits(flags[..., :count].repeat_interleave(each, -1)[..., :positions])


def sinks_of(options: dict[str, Any]) -> torch.Tensor | None:
    """The sinks of an attention call, float32 [Hq]."""
    sinks = options.get("s_aux")
    return None if sinks is None else sinks.detach().float().contiguous()


def forward_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | SelectedPositions | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [1, Hq, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] →
    [1, T, Hq, Dv]. Scale, window and options are those that runners/probe.py has found at load.

    Raises:
        ModelLoadError: the model makes a mask of its own (found by the trial run at load).
    """
    layer = layer_of(module)
    if isinstance(attention_mask, SelectedPositions):
        options |= attention_mask._asdict()
    elif attention_mask is not None and attention_mask is not STAND_IN:
        raise ModelLoadError(f"{type(module).__name__} makes an attention mask of its own, which is not supported")
    parts = (x[0].transpose(0, 1) for x in (query, key, value))
    spans = layer.shared.spans or []
    selected = selection_of(layer, options, max((span.length for span in spans), default=0))
    return layer.attend_cached(*parts, sinks=sinks_of(options), selected=selected)[None], None
