"""Which modules of a model with states are norms and gated MLPs that our own compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from runners.tiny_models import MODELS
from tailrace.kernels.reference.norm import rms_norm
from tailrace.runners.fuse import FusedMLP, FusedNorm, fuse_modules
from tailrace.runners.fuse_hybrids import find_builders, pick_mlp, pick_norm


class OwnRMSNorm(nn.Module):
    """A norm of any formula of x and the weight."""

    def __init__(self, formula: Any, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 64).to(dtype))
        self.eps, self.formula = 1e-6, formula

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.formula(x, self.weight.detach(), self.eps)


class OwnMLP(nn.Module):
    def __init__(self, act_fn: nn.Module | None = None) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.act_fn, self.multiplier = act_fn or nn.SiLU(), 0.999

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class ScaledMLP(OwnMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.multiplier


class ShortMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


NAMES = {
    "qwen3.5": {"Qwen3_5RMSNorm", "Qwen3_5MLP"},
    "lfm2": {"Lfm2RMSNorm", "Lfm2MLP"},
    "mamba2": {"Mamba2RMSNorm"},
    "falcon h1": {"FalconH1RMSNorm"},  # its MLP has multipliers
    "nemotron h": {"NemotronHRMSNorm"},
    "gemma3 text": set(),  # no states
}


@pytest.mark.parametrize("name", NAMES)
def test_families_are_recognised_by_what_they_compute(name):
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]())
    assert set(find_builders(model)) == NAMES[name]


@pytest.mark.parametrize("plus_one", [False, True])
def test_a_norm_is_one_of_two_formulas(plus_one):
    build = pick_norm(OwnRMSNorm(lambda x, weight, eps: rms_norm(x, weight, eps, plus_one)))
    assert build is not None
    made = build(OwnRMSNorm(None))
    assert isinstance(made, FusedNorm)
    assert made.plus_one == plus_one


@pytest.mark.parametrize(
    "formula",
    [
        lambda x, weight, eps: rms_norm(x, weight, eps) * 1.01,
        lambda x, weight, eps: rms_norm(x, weight, eps + 0.1),
        lambda x, weight, eps: (rms_norm(x.float(), weight.float(), eps)).to(x.dtype),  # rounded once
    ],
)
def test_other_norms_are_left_alone(formula):
    """The planted faults."""
    assert pick_norm(OwnRMSNorm(formula)) is None


@pytest.mark.parametrize("original", [OwnMLP(), ShortMLP()])
def test_a_gated_mlp_has_its_own_result(original):
    build = pick_mlp(original)
    assert build is not None
    made = build(original)
    assert isinstance(made, FusedMLP)
    x = torch.randn(5, 8)
    with torch.inference_mode():
        torch.testing.assert_close(made(x), original(x))


@pytest.mark.parametrize("original", [ScaledMLP(), OwnMLP(nn.GELU())])
def test_other_mlps_are_left_alone(original):
    """A multiplier near 1 would pass any comparison of results."""
    assert pick_mlp(original) is None


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Holder(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner = Times(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize(("last", "replaced"), [(1.0, ["Times"]), (2.0, [])])
def test_a_replacement_is_tried_at_both_ends(last, replaced):
    """In layer 0 a wrong formula may give the same: all residual streams of Qwen4-exp are equal there."""
    model = nn.Sequential(Holder(1.0), Holder(1.0), Holder(last))
    found = fuse_modules(model, lambda: model(torch.ones(3)), more={"Times": lambda _: nn.Identity()})
    assert found == replaced
    assert [type(holder.inner) is nn.Identity for holder in model] == [bool(replaced)] * 3
