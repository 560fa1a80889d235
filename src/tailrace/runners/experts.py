"""Mixtures of experts in which a token's result is the same bits however many tokens have chosen its experts.

transformers gives an expert's rows to one matrix product, whose way of adding depends on how many rows there are. The
kernels of linear layers add every row's products in one order (csrc/model/linear.cpp, kernels/gpu/products.py). On a
CPU the projections of every expert are packed. The host never reads how many rows an expert has.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.kernels.transfer import there


class GroupedLinear:
    """One linear layer per expert. packed: the result of kernels.pack_grouped or kernels.group_packed; experts: how
    many there are."""

    def __init__(self, packed: Any, experts: int) -> None:
        self.packed, self.experts = packed, experts

    def __call__(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return [S, N] of rows [S, K], sorted by expert. Rows of numbers that are no expert's become 0. starts: the
        result of find_starts."""
        return kernels.grouped_linear(rows, self.packed, starts)


def build_grouped(weight: torch.Tensor, bias: torch.Tensor | None = None) -> GroupedLinear:
    """Return the layers of a weight [E, N, K] and a bias [E, N] or None."""
    return GroupedLinear(kernels.pack_grouped(weight, bias), len(weight))


class PackedExperts(nn.Module):
    """The experts of a layer, as transformers' experts_implementation has them.

    own: the original without its projections; it has the gate, the activation and the norm. quantized: whether a
    projection has its weights in blocks.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        name = "gate_up_proj" if original.has_gate else "up_proj"
        self.up = build_projection(original, name)
        self.down = build_projection(original, "down_proj")
        self.own = copy(original)
        self.own._parameters = {}
        self.quantized = bool(getattr(original, "quantized", None))
        self.dtype = original.down_proj.dtype

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, H] of hidden_states [T, H], top_k_index and top_k_weights [T, k]. An index of num_experts is no
        expert."""
        return mix_experts(hidden_states, top_k_index, top_k_weights, self.each, self.up.experts)

    def each(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return each expert's outputs for its rows."""
        own = self.own
        rows = self.up(rows.to(self.dtype), starts)
        rows = self.down(own._apply_gate(rows) if own.has_gate else own.act_fn(rows), starts)
        return own.post_expert_norm(rows) if own.has_post_expert_norm else rows


class DbrxExperts(nn.Module):
    """The experts of a layer of DBRX."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        mlp = original.mlp
        gate, up, down = (
            weight.unflatten(0, (original.num_experts, original.ffn_hidden_size)) for weight in (mlp.w1, mlp.v1, mlp.w2)
        )
        self.up, self.down, self.act_fn = (
            build_grouped(torch.cat([gate, up], 1)),
            build_grouped(down.mT),
            mlp.activation_fn,
        )

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Do as PackedExperts, but with hidden_states [B, T, H] → [B, T, H]."""
        flat = hidden_states.flatten(0, -2)
        return mix_experts(flat, top_k_index, top_k_weights, self.each, self.up.experts).view_as(hidden_states)

    def each(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return each expert's outputs for its rows."""
        gate, up = self.up(rows, starts).chunk(2, -1)
        return self.down(self.act_fn(gate) * up, starts)


class Llama4Experts(nn.Module):
    """All experts of Llama 4 on all tokens: [E · T, H] → [E · T, H], sorted by expert."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.up = build_grouped(original.gate_up_proj.mT)
        self.down = build_grouped(original.down_proj.mT)
        self.act_fn = original.act_fn

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        each = len(hidden_states) // self.up.experts
        starts = torch.arange(self.up.experts + 1, device=hidden_states.device) * each
        gate, up = self.up(hidden_states, starts).chunk(2, -1)
        return self.down(up * self.act_fn(gate), starts)


class JetMoeExperts(nn.Module):
    """One projection of JetMoe's experts: inputs [S, K], sorted by expert, and how many each has → [S, N]."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.linear = build_grouped(original.weight)

    def forward(self, inputs: torch.Tensor, expert_size: list[int]) -> torch.Tensor:
        return self.linear(inputs, there(torch.tensor([0, *accumulate(expert_size)]), inputs.device))


def build_projection(original: Any, name: str) -> GroupedLinear:
    """Return a projection of decorated experts. It is in blocks if `quantized` has it (runners/quantized.py)."""
    if grouped := getattr(original, "quantized", {}).get(name):
        return grouped
    weight = getattr(original, name)
    return build_grouped(
        weight.mT if original.is_transposed else weight,
        getattr(original, f"{name}_bias") if original.has_bias else None,
    )


def mix_experts(
    states: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    each: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    number: int,
) -> torch.Tensor:
    """Return the weighted sum over the experts that each token chose: states [T, H], index and weights [T, k] → [T, H].

    each: rows sorted by expert, and their find_starts → the experts' outputs. number: of experts.
    """
    chosen = index.shape[-1]
    experts, order = index.reshape(-1).sort(stable=True)
    rows = each(states[order // chosen], find_starts(experts, number))
    rows = rows * weights.reshape(-1)[order, None]
    back = torch.empty_like(rows)
    back[order] = rows
    return sum_in_order(back.unflatten(0, (-1, chosen))).to(states.dtype)


def find_starts(experts: torch.Tensor, number: int) -> torch.Tensor:
    """Return where each expert's rows begin, given the rows' experts in ascending order: int64 [number + 1]. The last
    entry is the end of the last one's rows."""
    return torch.searchsorted(experts, torch.arange(number + 1, device=experts.device))


def sum_in_order(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum of [T, k, H] over k in float32, in one order."""
    total, *rest = parts.float().unbind(1)
    for part in rest:
        total = total + part
    return total
