"""Modules of our own kernels, swapped in at load: linear layers for every model; for modules of the Llama family merged
projections, fused norms, rotary embedding and gate; experts (runners/experts.py). They are faster on a CPU, and
row-invariant there and on a GPU.

A table from class name to builder. The first and the last replacement of each kind and place are tested by a trial
pass; if the logits differ, the modules stay as they are and the log says so. Weights are packed once and the originals
are freed, so memory is not doubled. On a CPU a tied output projection is packed as a copy, because the embedding still
needs its rows; on a GPU nothing is packed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.base.expert_modules import are_experts
from tailrace.runners.attention import ATTRIBUTE, AttentionLayer
from tailrace.runners.experts import DbrxExperts, JetMoeExperts, Llama4Experts, PackedExperts
from tailrace.runners.quantized import QuantizedLinear, rounds_activations

log = logging.getLogger(__name__)
BOUNDS = {torch.float32: 1e-4}  # of the change of logits, relative to their norm; of other dtypes COARSE
COARSE = 3e-2
DECORATED = "experts"  # of any class that transformers' use_experts_implementation decorates


class PackedLinear(nn.Module):
    """nn.Linear with packed weights. weight: has the dtype, which a model's code may ask for, and no entries."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight.new_empty((0, self.in_features))
        self.packed = kernels.pack_linear(weight.detach(), _detach_tensor(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.linear(x, self.packed)


class FusedNorm(nn.Module):
    """RMS norm, Llama's or (plus_one) Gemma's."""

    def __init__(self, original: Any, plus_one: bool) -> None:
        super().__init__()
        self.weight = original.weight.detach()
        self.eps = getattr(original, "variance_epsilon", None) or original.eps
        self.plus_one = plus_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.float() if x.dtype == torch.float32 else self.weight  # states keep a residual in float32
        return kernels.rms_norm(x, weight, self.eps, self.plus_one)


class FusedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up in one projection. projections: the names of the three."""

    def __init__(
        self, original: Any, projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> None:
        super().__init__()
        gate, up, down = (getattr(original, name) for name in projections)
        self.gate_up = merge_linears(gate, up)
        self.down = pack_projection(down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return apply_projections(kernels.silu_mul(apply_projections(x, self.gate_up)), self.down)


class FusedAttention(nn.Module):
    """Self-attention with q, k and v in one projection and rotary embedding in place."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.layer: AttentionLayer = getattr(original, ATTRIBUTE)
        self.layer_idx = original.layer_idx
        self.head_dim = original.head_dim
        self.widths = [p.out_features for p in (original.q_proj, original.k_proj, original.v_proj)]
        self.qkv = merge_linears(original.q_proj, original.k_proj, original.v_proj)
        self.out = pack_projection(original.o_proj)
        self.q_norm = FusedNorm(original.q_norm, False) if hasattr(original, "q_norm") else None
        self.k_norm = FusedNorm(original.k_norm, False) if hasattr(original, "k_norm") else None

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> tuple[torch.Tensor, None]:
        projected = apply_projections(hidden_states[0], self.qkv)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)) for part in projected.split_with_sizes(self.widths, -1)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        cos, sin = position_embeddings
        kernels.rotary(query, cos[0], sin[0])
        kernels.rotary(key, cos[0], sin[0])
        mixed = self.layer.attend_cached(query, key, value)
        return apply_projections(mixed.flatten(1), self.out)[None], None


def _detach_tensor(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


def pack_projection(linear: nn.Linear) -> list[Any]:
    """Pack one projection."""
    return merge_linears(linear)


def merge_linears(*linears: nn.Linear) -> list[Any]:
    """Pack several projections of one input as one; quantized ones into as few as their types allow."""
    quantized = [part for part in linears if isinstance(part, QuantizedLinear)]
    if len(quantized) == len(linears):
        return kernels.joined([part.packed for part in quantized])
    if quantized:
        return [packed for part in linears for packed in merge_linears(part)]
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([part.bias.detach() for part in linears])
    return [kernels.pack_linear(torch.cat([part.weight.detach() for part in linears]), bias)]


def apply_projections(x: torch.Tensor, packed: list[Any]) -> torch.Tensor:
    """Return the outputs of packed projections of x, side by side."""
    outputs = [kernels.linear(x, one) for one in packed]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


def _fuse_norm(original: Any) -> nn.Module:
    return FusedNorm(original, plus_one=False)


def _gemma_norm(original: Any) -> nn.Module:
    return FusedNorm(original, plus_one=True)


def is_silu(activation: object) -> bool:
    """Return whether a module's activation is SiLU. None: the module's code calls SiLU by itself."""
    return activation is None or type(activation).__name__ in ("SiLU", "SiLUActivation")


def _fuse_mlp(original: Any) -> nn.Module:
    if not is_silu(original.act_fn):
        raise TypeError(f"its activation is {type(original.act_fn).__name__}, not SiLU")
    return FusedMLP(original)


def _fuse_linear(original: nn.Linear) -> nn.Module:
    return PackedLinear(original.weight, original.bias)


def _fuse_conv1d(original: Any) -> nn.Module:
    """Pack GPT-2's linear layer, whose weight is [K, N]."""
    return PackedLinear(original.weight.T, original.bias)


# Class name → builder. Order matters: whole modules first, then the norms and linear layers that are left over.
MODULES: dict[str, Callable[[Any], nn.Module]] = {
    **dict.fromkeys(("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"), FusedAttention),
    **dict.fromkeys(("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"), _fuse_mlp),
    **dict.fromkeys(("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"), _fuse_norm),
    **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), _gemma_norm),
    DECORATED: PackedExperts,
    "Llama4TextExperts": Llama4Experts,
    "DbrxExperts": DbrxExperts,
    "JetMoeParallelExperts": JetMoeExperts,
    "Linear": _fuse_linear,
    "Conv1D": _fuse_conv1d,
}


def get_module_key(module: nn.Module) -> str:
    """Return the module's key in MODULES: its class's name."""
    return DECORATED if are_experts(module) else type(module).__name__


Places = list[tuple[nn.Module, str]]  # (parent, name of the child)


def fuse_modules(
    model: nn.Module,
    run: Callable[[], torch.Tensor],
    keep: Collection[str] = (),
    more: Mapping[str, Callable[[Any], nn.Module]] = {},
) -> list[str]:
    """Insert every replacement that computes the same; return the class names that were replaced.

    Args:
        model: in evaluation mode. Its attention modules have their AttentionLayer.
        run: a trial pass of the whole model → logits. It is called before and after each kind is replaced.
        keep: class names that are not replaced. The linear layers in them are still packed.
        more: class name → builder, tried before those of MODULES.
    """
    replaced = []
    before = run()
    rounds = rounds_activations(model) or any(part.dtype != torch.float32 for part in model.parameters())
    bound = COARSE if rounds else bound_of(before)  # a model may widen its logits
    for name, build in {**more, **MODULES}.items():
        groups = {} if name in keep else group_modules(model, name)
        problems, before = swap_ends(groups, build, run, (before, bound))
        for where, problem in problems.items():
            log.warning("%s is not replaced at %s: %s", name, where, problem)
        for where in groups.keys() - problems.keys():  # two are replaced; the others run the same code on other weights
            for parent, child in groups[where][1:-1]:
                setattr(parent, child, build(getattr(parent, child)))
        if len(problems) < len(groups):
            replaced.append(name)
    return replaced


def group_modules(model: nn.Module, name: str) -> dict[str, Places]:
    """Return the modules of a class, grouped by their parent's class and by their path without the numbers of layers
    and experts. Code around a module may read its weights (a router does), so each group is tried."""
    found: dict[str, Places] = {}
    for path, parent in model.named_modules():
        if isinstance(parent, PackedExperts):
            continue  # made at load, of blocks; the original in it has no weights
        for child, module in parent.named_children():
            if get_module_key(module) == name:
                where = f"{type(parent).__name__} {re.sub(r'[0-9]+', 'N', f'{path}.{child}')}"
                found.setdefault(where, []).append((parent, child))
    return found


def swap_ends(
    groups: dict[str, Places],
    build: Callable[[Any], nn.Module],
    run: Callable[[], torch.Tensor],
    usual: tuple[torch.Tensor, float],
) -> tuple[dict[str, str], torch.Tensor]:
    """Replace the first and the last module of each group. First try all groups at once; if that changes the logits,
    try one group after the other. (One is not enough: in layer 0 of Qwen4-exp all residual streams are equal, and a
    norm of each stream is one of them all.)

    usual: the logits, and by how much they may change.

    Returns:
        (group → why it is not replaced, logits as they are now)
    """
    before, bound = usual
    ends = [place for members in groups.values() for place in (members[0], members[-1])[: len(members)]]
    originals = [getattr(*place) for place in ends]
    try:
        for place, original in zip(ends, originals, strict=True):
            setattr(*place, build(original))
        after = run() if groups else before
        problem = explain_difference(before, after, bound)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        after, problem = before, str(error)
    if problem is None:
        return {}, after
    for place, original in zip(ends, originals, strict=True):
        setattr(*place, original)
    if len(groups) == 1:
        return {next(iter(groups)): problem}, before
    problems: dict[str, str] = {}
    for where, members in groups.items():
        found, before = swap_ends({where: members}, build, run, (before, bound))
        problems |= found
    return problems, before


def bound_of(logits: torch.Tensor) -> float:
    """Return an error bound that allows for the rounding of one module, but not for a wrong formula."""
    return BOUNDS.get(logits.dtype, COARSE)


def explain_difference(expected: torch.Tensor, got: torch.Tensor, bound: float | None = None) -> str | None:
    """Return how `got` differs from `expected`, or None. bound: of the error; None: the dtype's."""
    error = (expected.float() - got.float()).norm() / expected.float().norm()
    bound = bound_of(expected) if bound is None else bound
    return (
        None if error <= bound else f"its replacement changes the logits by {error:.1e} of their norm (bound {bound})"
    )
