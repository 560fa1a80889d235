"""Norms and gated MLPs of models with states, as runners/fuse.py replaces them.

Every family has classes of its own with one of a few formulas. So a class is recognised by what it computes, not by its
name. Other models' classes are left alone, because the last bits of their results would change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tailrace.kernels.reference.norm import rms_norm
from tailrace.runners.fuse import MODULES, FusedMLP, FusedNorm, is_silu
from tailrace.runners.recurrent import has_state

# The names that `forward` of a gated MLP uses → its gate, up and down projections.
GATED = {
    frozenset(("gate_proj", "up_proj", "down_proj", "act_fn")): ("gate_proj", "up_proj", "down_proj"),
    frozenset(("w1", "w2", "w3", "F", "silu")): ("w1", "w3", "w2"),
}


def find_builders(model: nn.Module) -> dict[str, Callable[[Any], nn.Module]]:
    """Return class name → builder for a model with states, {} for any other model."""
    modules = list(model.modules())
    if not any(map(has_state, modules)):
        return {}
    found: dict[str, Callable[[Any], nn.Module]] = {}
    for module in modules:
        name = type(module).__name__
        if name not in found and name not in MODULES and (build := pick_mlp(module) or pick_norm(module)):
            found[name] = build
    return found


def pick_mlp(module: Any) -> Callable[[Any], nn.Module] | None:
    """Return the builder of a gated MLP with SiLU; None for any other module."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    projections = GATED.get(frozenset(code.co_names)) if code else None
    if projections is None or not is_silu(getattr(module, "act_fn", None)):
        return None
    return partial(FusedMLP, projections=projections)


@torch.inference_mode()
def pick_norm(module: Any) -> Callable[[Any], nn.Module] | None:
    """Return the builder of an RMS norm that has the same bits as the reference; None for any other module."""
    weights = dict(module.named_parameters())
    if not type(module).__name__.endswith("RMSNorm") or list(weights) != ["weight"] or module.weight.dim() != 1:
        return None
    generator = torch.Generator().manual_seed(7)
    x = torch.randn((3, len(module.weight)), generator=generator).to(module.weight)
    for plus_one in (False, True):
        fused = FusedNorm(module, plus_one)
        if torch.equal(module(x), rms_norm(x, fused.weight, fused.eps, plus_one)):
            return partial(FusedNorm, plus_one=plus_one)
    return None
