"""Packed experts compute what transformers' own do, and an expert's rows are the same bits however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.dbrx.modeling_dbrx import DbrxExperts as DbrxTransformersExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.jetmoe.modeling_jetmoe import JetMoeParallelExperts
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from tailrace import kernels
from tailrace.base.expert_modules import are_experts
from tailrace.kernels.reference import products as reference
from tailrace.runners.experts import (
    DbrxExperts,
    JetMoeExperts,
    Llama4Experts,
    PackedExperts,
    build_grouped,
    sum_in_order,
)
from tailrace.runners.fuse import get_module_key
from tailrace.runners.invariant import PlaceIndependent

EXPERTS, HIDDEN, INNER, CHOSEN, TOKENS = 6, 40, 24, 3, 50
t: Any = transformers
COMMON = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": EXPERTS}


class Normed(nn.Module):
    """Experts with a norm behind them, as Muse Spark has them."""

    def __init__(self) -> None:
        super().__init__()
        own: Any = MixtralExperts(t.MixtralConfig(**COMMON))
        self.__dict__ |= own.__dict__
        self.has_post_expert_norm = True
        self.post_expert_norm = nn.LayerNorm(HIDDEN)

    _apply_gate = MixtralExperts._apply_gate  # pyright: ignore[reportAttributeAccessIssue]
    forward = MixtralExperts.forward


KINDS: dict[str, Callable[[], Any]] = {
    "gated": lambda: MixtralExperts(t.MixtralConfig(**COMMON)),
    "transposed, biases, own gate": lambda: GptOssExperts(t.GptOssConfig(**COMMON)),
    "no gate": lambda: NemotronHExperts(
        t.NemotronHConfig(
            hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=EXPERTS, moe_latent_size=None
        )
    ),
    "norm behind": Normed,
}


def made(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """A layer with random weights."""
    torch.manual_seed(3)
    layer = KINDS[kind]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    layer.config._experts_implementation = "grouped_mm"
    return layer.to(dtype).eval()


def routed(tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, experts and their weights. No token chooses the last expert but one."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.rand(tokens, EXPERTS, generator=generator)
    scores[:, -2] = -1
    best = scores.topk(CHOSEN)
    return torch.randn(tokens, HIDDEN, generator=generator), best.indices, best.values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_same_as_transformers(kind, dtype):
    layer, (states, index, weights) = made(kind, dtype), routed()
    assert are_experts(layer)
    assert get_module_key(layer) == "experts"
    wide = made(kind, dtype).float()(states.to(dtype).float(), index, weights.to(dtype).float())
    got = PackedExperts(layer)(states.to(dtype), index, weights.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.float(), wide, **({"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.2, "rtol": 2e-2})
    )


def depends_on_neighbours(layer: Any) -> bool:
    """Whether a token has other bits alone, or in the second half, than among all."""
    states, index, weights = routed()
    whole = layer(states, index, weights)
    alone = [layer(states[i : i + 1], index[i : i + 1], weights[i : i + 1]) for i in range(TOKENS)]
    half = layer(states[TOKENS // 2 :], index[TOKENS // 2 :], weights[TOKENS // 2 :])
    return not torch.equal(torch.cat(alone), whole) or not torch.equal(half, whole[TOKENS // 2 :])


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_neighbours_do_not_matter(kind):
    with PlaceIndependent():
        assert not depends_on_neighbours(PackedExperts(made(kind)))


@torch.inference_mode()
def test_transformers_own_are_seen_to_depend_on_them():
    with PlaceIndependent():
        assert depends_on_neighbours(made("gated"))


@torch.inference_mode()
def test_an_index_behind_the_last_expert_is_none():
    layer, (states, index, weights) = PackedExperts(made("gated")), routed()
    absent = index.clone()
    absent[:, 0] = EXPERTS
    lighter = weights.clone()
    lighter[:, 0] = 0
    torch.testing.assert_close(layer(states, absent, weights), layer(states, index, lighter))
    nobody = torch.full_like(index, EXPERTS)
    assert not layer(states, nobody, weights).any()


@torch.inference_mode()
def test_experts_of_llama4_and_of_jetmoe():
    torch.manual_seed(0)
    llama: Any = Llama4TextExperts(t.Llama4TextConfig(**COMMON))
    jet: Any = JetMoeParallelExperts(EXPERTS, HIDDEN, INNER)
    for parameter in (*llama.parameters(), *jet.parameters()):
        nn.init.normal_(parameter, std=0.3)
    states = torch.randn(EXPERTS * 4, HIDDEN)
    torch.testing.assert_close(Llama4Experts(llama)(states), llama(states), atol=1e-5, rtol=1e-5)
    counts = [4, 0, 9, 1, 7, 3]
    torch.testing.assert_close(JetMoeExperts(jet)(states, counts), jet(states, counts), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_experts_of_dbrx():
    torch.manual_seed(0)
    config = t.DbrxConfig(
        d_model=HIDDEN, ffn_config={"hidden_size": HIDDEN, "ffn_hidden_size": INNER, "moe_num_experts": EXPERTS}
    )
    dbrx: Any = DbrxTransformersExperts(config.ffn_config)
    for parameter in dbrx.parameters():
        nn.init.normal_(parameter, std=0.3)
    states, index, weights = routed()
    got = DbrxExperts(dbrx)(states[None], index, weights)
    torch.testing.assert_close(got, dbrx(states[None], index, weights), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 8), (4, 130, 33), (6, 64, 40), (1, 7, 1)])
def test_each_expert_has_its_own_rows(shape, biased, dtype):
    """With the bits that a linear layer of its own gives them."""
    torch.manual_seed(0)
    groups, features, depth = shape
    weight, bias = torch.randn(shape, dtype=dtype), torch.randn(groups, features, dtype=dtype) if biased else None
    counts = torch.randint(0, 9, (groups,)) * torch.randint(0, 2, (groups,))
    starts = torch.tensor([2, *(2 + counts.cumsum(0)).tolist()])
    rows = torch.randn(int(starts[-1]) + 3, depth, dtype=dtype)
    got = build_grouped(weight, bias)(rows, starts)
    expected = torch.zeros(len(rows), features, dtype=dtype)
    for group in range(groups):
        own = slice(int(starts[group]), int(starts[group + 1]))
        packed = kernels.pack_linear(weight[group], None if bias is None else bias[group])
        expected[own] = kernels.linear(rows[own], packed)
    assert torch.equal(got, expected)
    close = {"atol": 1e-4, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.2, "rtol": 2e-2}
    plain = reference.grouped_linear(rows, reference.pack_grouped(weight, bias), starts)
    torch.testing.assert_close(got, plain, **close)


def test_starts_that_do_not_ascend_are_refused():
    layers, rows = build_grouped(torch.randn(2, 5, 8)), torch.randn(4, 8)
    for starts in ([0, 3, 2], [0, 2, 5], [-1, 0, 4]):
        with pytest.raises(ValueError, match="starts must ascend"):
            layers(rows, torch.tensor(starts))
    with pytest.raises(ValueError, match=r"starts must be int64 \[3\]"):
        layers(rows, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"x must be \[S, 8\]"):
        layers(rows[:, 1:], torch.tensor([0, 2, 4]))


def test_sums_have_one_order():
    parts = torch.randn(40, 7, 33, generator=torch.Generator().manual_seed(0)) * 1e3
    assert torch.equal(sum_in_order(parts), torch.cat([sum_in_order(parts[i : i + 1]) for i in range(40)]))
    torch.testing.assert_close(sum_in_order(parts), parts.sum(1), atol=1e-2, rtol=1e-5)
