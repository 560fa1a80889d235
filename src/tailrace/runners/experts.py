"""Mixtures of experts in which a token's result is the same bits however many tokens have chosen its experts.

transformers gives an expert's rows to one matrix product, whose way of adding depends on how many rows there are. The
kernels of linear layers add every row's products in one order (csrc/model/linear.cpp, kernels/gpu/products.py). On a
CPU the projections of every expert are packed.
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

# of the modules that transformers' use_experts_implementation decorates
DECORATED = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")


Sizes = list[int] | torch.Tensor  # see sizes_of


class GroupedLinear:
    """One linear layer per expert, packed for the CPU. weight: [E, N, K]; bias: [E, N] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        biases = [None] * len(weight) if bias is None else list(bias.detach())
        pairs = zip(weight.detach(), biases, strict=True)
        self.packed = [kernels.pack_linear(own, own_bias) for own, own_bias in pairs]
        self.experts, self.width = weight.shape[:2]

    def __call__(self, rows: torch.Tensor, counts: Sizes) -> torch.Tensor:
        """Return [S, N] of rows [S, K], sorted by expert. Rows of numbers that are no expert's become 0. counts: how
        many rows each expert has, up to the last that has any."""
        assert isinstance(counts, list)
        pairs = zip(rows.split(counts), self.packed, strict=False)
        done = [kernels.linear(part, packed) for part, packed in pairs if len(part)]
        none = sum(counts[len(self.packed) :])
        return torch.cat([*done, rows.new_zeros(none, self.width)])


class DeviceGroupedLinear:
    """One linear layer per expert on a GPU, where the host does not know each expert's number of rows. weight: [E, N,
    K]; bias: [E, N] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.experts = len(weight)

    def __call__(self, rows: torch.Tensor, starts: Sizes) -> torch.Tensor:
        """Return [S, N] of rows [S, K], sorted by expert. Rows without an expert become 0. starts: the result of
        sizes_of, or the number of rows of each expert."""
        if isinstance(starts, list):
            starts = there(torch.tensor([0, *accumulate(starts)]), rows.device)
        return kernels.grouped_linear(rows, self.weight, self.bias, starts)


def grouped_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> GroupedLinear | DeviceGroupedLinear:
    """Return the layers for the weight's device."""
    return (GroupedLinear if weight.device.type == "cpu" else DeviceGroupedLinear)(weight, bias)


class PackedExperts(nn.Module):
    """The experts of a layer, as transformers' experts_implementation has them.

    own: the original without its projections; it has the gate, the activation and the norm.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        name = "gate_up_proj" if original.has_gate else "up_proj"
        self.up = build_projection(original, name)
        self.down = build_projection(original, "down_proj")
        self.own = copy(original)
        self.own._parameters = {}
        self.dtype = original.down_proj.dtype

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [T, H] of hidden_states [T, H], top_k_index and top_k_weights [T, k]. An index of num_experts is no
        expert."""
        return mix_experts(hidden_states, top_k_index, top_k_weights, self.each, self.up.experts)

    def each(self, rows: torch.Tensor, counts: Sizes) -> torch.Tensor:
        """Return each expert's outputs for its rows."""
        own = self.own
        rows = self.up(rows.to(self.dtype), counts)
        rows = self.down(own._apply_gate(rows) if own.has_gate else own.act_fn(rows), counts)
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
            grouped_linear(torch.cat([gate, up], 1)),
            grouped_linear(down.mT),
            mlp.activation_fn,
        )

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Do as PackedExperts, but with hidden_states [B, T, H] → [B, T, H]."""
        flat = hidden_states.flatten(0, -2)
        return mix_experts(flat, top_k_index, top_k_weights, self.each, self.up.experts).view_as(hidden_states)

    def each(self, rows: torch.Tensor, counts: Sizes) -> torch.Tensor:
        """Return each expert's outputs for its rows."""
        gate, up = self.up(rows, counts).chunk(2, -1)
        return self.down(self.act_fn(gate) * up, counts)


class Llama4Experts(nn.Module):
    """All experts of Llama 4 on all tokens: [E · T, H] → [E · T, H], sorted by expert."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.up = grouped_linear(original.gate_up_proj.mT)
        self.down = grouped_linear(original.down_proj.mT)
        self.act_fn = original.act_fn

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        counts = [len(hidden_states) // self.up.experts] * self.up.experts
        gate, up = self.up(hidden_states, counts).chunk(2, -1)
        return self.down(up * self.act_fn(gate), counts)


class JetMoeExperts(nn.Module):
    """One projection of JetMoe's experts: inputs [S, K], sorted by expert, and how many each has → [S, N]."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.linear = grouped_linear(original.weight)

    def forward(self, inputs: torch.Tensor, expert_size: list[int]) -> torch.Tensor:
        return self.linear(inputs, list(expert_size))


def build_projection(original: Any, name: str) -> GroupedLinear | DeviceGroupedLinear:
    """Return a projection of decorated experts."""
    weight = getattr(original, name)
    return grouped_linear(
        weight.mT if original.is_transposed else weight,
        getattr(original, f"{name}_bias") if original.has_bias else None,
    )


def mix_experts(
    states: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    each: Callable[[torch.Tensor, Sizes], torch.Tensor],
    number: int,
) -> torch.Tensor:
    """Return the weighted sum over the experts that each token chose: states [T, H], index and weights [T, k] → [T, H].

    each: rows sorted by expert, and their sizes_of → the experts' outputs. number: of experts.
    """
    chosen = index.shape[-1]
    experts, order = index.reshape(-1).sort(stable=True)
    rows = each(states[order // chosen], sizes_of(experts, number))
    rows = rows * weights.reshape(-1)[order, None]
    back = torch.empty_like(rows)
    back[order] = rows
    return sum_in_order(back.unflatten(0, (-1, chosen))).to(states.dtype)


def sizes_of(experts: torch.Tensor, number: int) -> Sizes:
    """Return how many rows each expert has, given the rows' experts in ascending order. On a GPU the host must not wait
    for these counts, so there return where each expert's rows begin: int64 [number + 1]."""
    if experts.device.type == "cpu":
        return torch.bincount(experts).tolist()
    return torch.searchsorted(experts, torch.arange(number + 1, device=experts.device))


def sum_in_order(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum of [T, k, H] over k in float32, in one order."""
    total, *rest = parts.float().unbind(1)
    for part in rest:
        total = total + part
    return total


def are_experts(module: nn.Module) -> bool:
    """Return True for modules that transformers' use_experts_implementation decorates."""
    return all(hasattr(module, name) for name in DECORATED)
