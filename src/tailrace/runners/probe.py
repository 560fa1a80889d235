"""The attention of each layer, found by a pass over one dense sequence at load: shapes, scale, window, options.

Every layer's paged attention is compared with the model's own attention function on the same inputs, in float32. So a
wrong formula shows in the layer where it is, and rounding has no layers to grow in. Knows nothing of models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.runners.attention import (
    AttentionLayer,
    AttentionState,
    AttentionStep,
    SelectedPositions,
    layer_of,
    selection_of,
    sinks_of,
)
from tailrace.runners.masks import AttentionMask, read_mask_tensor

NAME = "tailrace_probe"  # the name under which the functions are registered
BLOCK = 16
OTHER_MASK = (
    "by a mask that is not causal within a sliding window or a chunk, or by a bias in it; this is not supported"
)
# Largest relative error of a layer's output, by bits of the mantissa. The rounding of one attention stays below.
BOUNDS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}

# Options of an attention call, and the values at which an option changes nothing. Any other option is refused unless it
# is None or False.
NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "dropout": lambda value: value == 0,
    "is_causal": lambda value: value is True,
    **dict.fromkeys(("position_ids", "cache_position", "position_embeddings", "use_cache"), lambda _: True),
    "logits_to_keep": lambda _: True,  # wrappers pass it on to every layer
    **dict.fromkeys(("sliding_window", "softcap", "s_aux"), lambda _: True),  # read below
    **dict.fromkeys(("indices", "flags", "block_indices"), lambda _: True),
}


def probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | SelectedPositions | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention function of the probing pass: query [1, Hq, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv]
    → [1, T, Hq, Dv].

    Raises:
        ModelLoadError: the layer asks for something that the paged kernel can't do, or computes something else.
    """
    name, layer = type(module).__name__, layer_of(module)
    if isinstance(attention_mask, SelectedPositions):
        options, attention_mask = options | attention_mask._asdict(), None
    refuse_options(name, options)
    tokens = query.shape[2]
    if query.shape[0] != 1 or key.shape[2] != tokens or query.shape[-1] != key.shape[-1]:
        raise ModelLoadError(f"{name} attends to other tokens than its own sequence's, which is not supported")
    if key.shape[-1] % 2 or value.shape[-1] % 2:
        raise ModelLoadError(f"{name} has an odd head size, {key.shape[-1]}, which is not supported")
    if attention_mask is None:
        mask: AttentionMask | None = AttentionMask(window=int(options.get("sliding_window") or 0))
    else:
        mask = read_mask_tensor(attention_mask, tokens)
    if mask is None:
        raise ModelLoadError(f"{name} attends {OTHER_MASK}")
    layer.calls += 1
    layer.note(key, value)
    layer.scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer.window, layer.chunk = mask.window, mask.chunk
    layer.softcap = float(options.get("softcap") or 0.0)
    if attention_mask is None:
        attention_mask = dense_bias(mask, tokens, query)
    selected = selection_of(layer, options, tokens)
    if selected is not None:
        attention_mask = hide_rest(attention_mask, selected, query.shape[1])
    expected = own_attention(module, query, key, value, attention_mask, layer.scale, options)
    ours = attend_alone(layer, (query, key, value), sinks_of(options), selected)
    compare_outputs(name, ours, expected)
    return expected.to(query.dtype), None


def refuse_options(name: str, options: dict[str, Any]) -> None:
    """Raise ModelLoadError if the call has an option that the kernel does not know."""
    unknown = [
        option
        for option, value in options.items()
        if value is not None and value is not False and not NEUTRAL.get(option, lambda _: False)(value)
    ]
    if unknown:
        raise ModelLoadError(f"{name} calls attention with {', '.join(sorted(unknown))}, which is not supported")


def dense_bias(mask: AttentionMask, tokens: int, like: torch.Tensor) -> torch.Tensor:
    """Return the mask as transformers' eager functions take it: [1, 1, T, T] in like's dtype, 0 or the lowest
    number."""
    hidden = ~mask.make_dense(tokens, like.device)
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(
        hidden, torch.finfo(like.dtype).min
    )[None, None]


def hide_rest(bias: torch.Tensor, selected: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the mask [1, 1 or H, T, T] with all positions hidden that are not selected: bits of int64 [T, 1 or Hkv,
    W]."""
    seen = kernels.unpack_bits(selected)[..., : bias.shape[-1]].transpose(0, 1)
    seen = seen.repeat_interleave(heads // seen.shape[0], 0)
    return bias.masked_fill(~seen, torch.finfo(bias.dtype).min)


def own_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    options: dict[str, Any],
) -> torch.Tensor:
    """Return the output [1, T, Hq, D], in float32, of the eager function in the module of the layer's class.
    (More than six parameters: those of transformers' attention functions.)

    Raises:
        ModelLoadError: that module has no such function.
    """
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise ModelLoadError(f"{type(module).__name__} has no eager attention to compare with; it can't be served")
    exact = [x.float() for x in (query, key, value)]
    return function(module, *exact, attention_mask.float(), scaling=scaling, **options)[0]


def attend_alone(
    layer: AttentionLayer,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sinks: torch.Tensor | None,
    selected: torch.Tensor | None,
) -> torch.Tensor:
    """Return the layer's paged attention of one sequence (its query, key and value) in a cache of its own."""
    query = parts[0]
    tokens, device = query.shape[2], query.device
    blocks = -(-tokens // BLOCK)
    cache = kernels.make_cache(blocks, layer.heads, BLOCK, (layer.head_dim, layer.value_dim), query.dtype, device)
    places = torch.arange(tokens, device=device)
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    tables = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    state = AttentionState(AttentionStep(places, bounds, bounds[1:], tables), caches=[cache] * (layer.index + 1))
    own = layer.shared, layer.source
    layer.shared, layer.source = state, layer.index
    try:
        return layer.attend_cached(*(x[0].transpose(0, 1) for x in parts), sinks=sinks, selected=selected)[None]
    finally:
        layer.shared, layer.source = own


def compare_outputs(name: str, ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise ModelLoadError if the outputs differ by more than rounding."""
    error = ((ours.float() - expected).norm() / expected.norm().clamp_min(1e-30)).item()
    if not error <= BOUNDS[ours.dtype]:
        raise ModelLoadError(f"{name}: paged attention differs from the model's own (error {error:.1e}); not served")
