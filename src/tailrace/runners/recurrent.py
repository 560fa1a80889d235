"""Layers with a state of fixed size per sequence (state spaces, gated delta nets, short convolutions) in a flat batch.

A model's own code runs unchanged, except for the functions that walk along a sequence: a causal convolution and a scan.
Each such module of transformers calls them by name. Here it gets a copy of its `forward` in which these names mean the
operations below, which know where each sequence of the batch begins and where its state is (runners/states.py).

Every scan goes token by token: the result does not depend on how a prompt is cut into chunks, as it would with
transformers' chunked forms. The arithmetic is fp32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.runners.ngrams import METHODS
from tailrace.runners.states import RecurrentLayer, RecurrentState


def convolve(
    layer: RecurrentLayer,
    original: Callable[..., torch.Tensor],
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> torch.Tensor:
    """Return a causal convolution per channel: [1, C, T], weight [C, K] → [1, C, T]. State: the K − 1 inputs before.

    The weight's dtype may be wider than that of the inputs.
    """
    channels, width = weight.shape
    if layer.shared.walk is None:
        layer.note("convolution", (width - 1, channels), weight.dtype)
        return layer.own(original, hidden_states, weight, bias, activation=activation, **options)
    given = kernels.Convolution(hidden_states[0].T.to(weight.dtype), weight, bias, silu=activation is not None)
    return kernels.convolve(given, *layer.find_states("convolution")).to(hidden_states.dtype).T[None]


def gated_delta(
    layer: RecurrentLayer,
    original: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the gated delta rule (arXiv 2412.06464), or Kimi's with a decay per channel (arXiv 2510.26692).

    query, key: [1, T, Hk, Dk]. value: [1, T, Hv, Dv]. decay: [1, T, Hv] or [1, T, Hv, Dk]. Result: [1, T, Hv, Dv].
    State: [Hv, Dk, Dv].
    """
    heads, value_dim = value.shape[2:]
    if layer.shared.walk is None:
        layer.note("delta", (heads, key.shape[-1], value_dim), torch.float32)
        return layer.own(original, query, key, value, **options)
    given = kernels.HeadScan(
        query[0],
        key[0],
        value[0],
        decay=options["g"][0].float(),
        factor=options["beta"][0].float(),
        dtype=value.dtype,
        scale=key.shape[-1] ** -0.5,
        delta=True,
        normalize=bool(options.get("use_qk_l2norm_in_kernel")),
    )
    return kernels.scan_heads(given, *layer.find_states("delta"))[None], None


def mamba2(
    layer: RecurrentLayer,
    original: Callable[..., Any],
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803, the paper's names, which transformers' modules use
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    **options: Any,
) -> torch.Tensor:
    """Compute Mamba 2's scan (arXiv 2405.21060). (More than six parameters: those of transformers' function.)

    hidden_states: [1, T, H, P]. dt: [1, T, H]. A: [H]. B and C: [1, T, G, N]. Result: [1, T, H, P]. State: [H, N, P].
    """
    heads, width = hidden_states.shape[2:]
    if layer.shared.walk is None:
        layer.note("scan", (heads, B.shape[-1], width), torch.float32)
        return layer.own(original, hidden_states, dt, A, B, C, **options)
    bias, skip = options.get("dt_bias"), options.get("D")
    delta = dt[0] if bias is None else dt[0] + bias.to(dt.dtype)
    delta = F.softplus(delta) if options.get("dt_softplus") else delta
    delta = delta.clamp(*options.get("dt_limit", (0.0, float("inf")))).float()
    given = kernels.HeadScan(
        C[0],
        B[0],
        hidden_states[0],
        decay=A.float() * delta,
        factor=delta,
        dtype=torch.float32,
        skip=None if skip is None else skip.float(),
    )
    return kernels.scan_heads(given, *layer.find_states("scan"))[None]


def mamba(
    layer: RecurrentLayer,
    original: Callable[..., Any],
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803, the paper's names, which transformers' modules use
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    **options: Any,
) -> torch.Tensor:
    """Compute Mamba's selective scan (arXiv 2312.00752). (More than six parameters: those of transformers' function.)

    hidden_states: [1, I, T]. dt: [1, I, T]. A: [I, N]. B and C: [1, N, T]. Result: [1, I, T]. State: [N, I].
    """
    if layer.shared.walk is None:
        layer.note("scan", (A.shape[1], A.shape[0]), torch.float32)
        return layer.own(original, hidden_states, dt, A, B, C, **options)
    x, bias, skip, gate = hidden_states[0].T, options.get("delta_bias"), options.get("D"), options.get("z")
    delta = dt[0].T if bias is None else dt[0].T + bias.to(dt.dtype)
    delta = F.softplus(delta) if options.get("delta_softplus") else delta
    given = kernels.ChannelScan(x, B[0].T, C[0].T, step=delta.float(), rate=A.float())
    out = kernels.scan_channels(given, *layer.find_states("scan")).to(x.dtype)
    out = out if skip is None else out + x * skip
    return (out if gate is None else out * F.silu(gate[0].T)).T[None]


def attend_lightning(
    layer: RecurrentLayer, module: Any, rate: torch.Tensor, hidden_states: torch.Tensor, *rest: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Compute MiniMax's lightning attention (arXiv 2501.08313): `forward` of its module.

    rate: float32 [H], by which a head's state decays. hidden_states: [1, T, hidden]. State: [H, D, D].
    """
    heads, width = len(rate), module.head_dim
    if layer.shared.walk is None:
        layer.note("attention", (heads, width, width), torch.float32)
        return type(module).forward(module, hidden_states, *rest, **options)
    mixed = module.act_fn(module.qkv_proj(hidden_states))[0].unflatten(-1, (heads, 3 * width))
    query, key, value = mixed.split(width, -1)
    decay = (-rate).expand(len(mixed), -1)
    given = kernels.HeadScan(query, key, value, decay, torch.ones_like(decay), value.dtype)
    out = module.norm(kernels.scan_heads(given, *layer.find_states("attention")).flatten(1)[None])
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * out), None


def read_rate(module: Any) -> torch.Tensor:
    """Return the decay rates of a lightning attention in float32, [H]. A loaded model has rounded them."""
    exact, loaded = module.get_slope_rate(module.slope_rate.device), module.slope_rate
    return (exact if torch.equal(exact.to(loaded.dtype), loaded) else loaded).float().flatten()


ACTIVATIONS = (None, "silu", "swish")

# The name in transformers → ours. Scans come in two forms there; a module that is given no cache calls this one.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": convolve,
    "torch_chunk_gated_delta_rule": gated_delta,
    "chunk_kimi_delta_attention": gated_delta,
    "mamba2_chunk_scan": mamba2,
    "mamba_selective_scan": mamba,
}


# Modules whose scan is no function of its own.
LIGHTNING = "MiniMaxLightningAttention"


class KeptLinear(nn.Linear):
    """A linear layer whose weights the model's code reads itself: runners/fuse.py leaves it as it is."""


def keep_weight(linear: Any) -> None:
    """Leave the weights of a linear layer as numbers. Widen those in blocks."""
    packed = getattr(linear, "packed", None)  # of a QuantizedLinear
    if packed is not None:
        rows = kernels.quantized_rows(packed, torch.arange(linear.out_features), linear.dtype)
        linear.packed, linear.weight = None, nn.Parameter(rows, requires_grad=False)
    linear.__class__ = KeptLinear


def clear_notes(layer: RecurrentLayer, *_: Any) -> None:
    """Forget the states noted so far: a forward pre-hook."""
    layer.noted.clear()


def operations_of(module: nn.Module) -> set[str]:
    """Return the operations that the module's own `forward` calls."""
    forward = inspect.unwrap(type(module).forward)
    return set(OPERATIONS) & set(getattr(forward, "__code__", attach_recurrent.__code__).co_names)


def methods_of(module: nn.Module) -> set[str]:
    """Return the methods of the module that see the tokens before."""
    return {name for name in METHODS if hasattr(type(module), name)}


def has_state(module: nn.Module) -> bool:
    """Return True if the module keeps a state, whatever its name (KimiLinearDeltaAttention)."""
    return type(module).__name__ == LIGHTNING or bool(operations_of(module) | methods_of(module))


def attach_recurrent(model: Any, shared: RecurrentState) -> list[RecurrentLayer]:
    """Give every module that calls one of the operations its own `forward`, with ours in it.

    Raises:
        ModelLoadError: a module has an activation that we don't have.
    """
    layers: list[RecurrentLayer] = []
    for module in model.modules():
        if not has_state(module):
            continue
        called = operations_of(module)
        if getattr(module, "activation", None) not in ACTIVATIONS:
            raise ModelLoadError(
                f"{type(module).__name__} has the activation {module.activation}, which is not supported"
            )
        layer = RecurrentLayer(shared, len(layers), type(module).__name__)
        layers.append(layer)
        module.register_forward_pre_hook(partial(clear_notes, layer))
        for name in methods_of(module):
            setattr(module, name, METHODS[name](layer, module))
        if not called and methods_of(module):
            continue
        if not called:
            module.forward = partial(attend_lightning, layer, module, read_rate(module))
            continue
        forward = inspect.unwrap(type(module).forward)
        ours = {name: partial(OPERATIONS[name], layer, forward.__globals__[name]) for name in called}
        bound = FunctionType(
            forward.__code__, forward.__globals__ | ours, forward.__name__, forward.__defaults__, forward.__closure__
        )
        bound.__kwdefaults__ = forward.__kwdefaults__
        module.forward = MethodType(bound, module)
        if "mamba_selective_scan" in called and isinstance(getattr(module, "dt_proj", None), nn.Linear):
            keep_weight(module.dt_proj)
    return layers
