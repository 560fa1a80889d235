"""Which tensors the parameters of state spaces, and of models around them, are made of, beside those of
gguf_recipes.py. Part of convert.py's process; reads no values.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tailrace.models.gguf_recipes import (
    DOWN,
    GRANITE_MOE,
    PERMUTED,
    WAYS,
    Change,
    Recipe,
    Settings,
    add_axis,
    join_rows,
    take_first,
    take_logarithm,
)


def flatten_values(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that makes a vector of values for each head, or of a norm's groups."""
    return lambda values: values.reshape(-1)


def flatten_logarithm(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that makes a vector of the logarithms of decays, which are stored as −exp."""
    return lambda values: np.log(-values).reshape(-1)


def lay_logarithm(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that takes the logarithms for Kimi Linear, whose parameter has four dimensions."""
    return lambda values: np.log(-values).reshape(1, 1, -1, 1)


def join_kernels(values: list[np.ndarray]) -> np.ndarray:
    """Join the kernels of queries', keys' and values' convolutions, in this order."""
    return np.concatenate([kernel.reshape(-1, 1, kernel.shape[-1]) for kernel in values])


def ways_of(place: str, **tensors: str) -> dict[str, tuple[Recipe, ...]]:
    """Return the ways of parameters that are a tensor as it is. place: their module. tensors: by the parameter's last
    name, with two underscores for a point."""
    return {
        f"{place}.{name.replace('__', '.')}": (Recipe((source,), take_first, experts=take_first),)
        for name, source in tensors.items()
    }


DT_BIAS = {"dt_bias": "ssm_dt.bias"}
MAMBA = (
    Change(r"\.conv1d\.weight$", add_axis, False),
    Change(r"\.A_log$", take_logarithm, False),
)
MAMBA2 = (
    MAMBA[0],
    Change(r"\.A_log$", flatten_logarithm, False),
    Change(r"\.(?:D|(?:mixer|mamba)\.norm\.weight)$", flatten_values, False),
)
MAMBA2_WAYS = ways_of("mixer", **DT_BIAS)
JAMBA = {
    "feed_forward.experts.gate_up_proj": WAYS["mlp.experts.gate_up_proj"],
    "feed_forward.experts.down_proj": (DOWN,),
}
FALCON_H1 = ways_of("mamba", **DT_BIAS) | {"pre_ff_layernorm.weight": (Recipe(("ffn_norm",), take_first, False),)}
HYBRID_GRANITE = GRANITE_MOE | ways_of("mamba", **DT_BIAS)
HYBRID_GRANITE |= {
    "shared_mlp.input_linear.weight": (
        *GRANITE_MOE["shared_mlp.input_linear.weight"],
        Recipe(("ffn_gate.weight", "ffn_up.weight"), join_rows),
    ),
    "shared_mlp.output_linear.weight": (
        Recipe(("ffn_down_shexp.weight",), take_first),
        Recipe(("ffn_down.weight",), take_first),
    ),
}
HYBRID_CHANGES = (*MAMBA2, *PERMUTED)
NEMOTRON_H = ways_of(
    "mixer",
    **DT_BIAS,
    A_log="ssm_a",
    D="ssm_d",
    **{f"{ours}__{end}": f"{theirs}.{end}" for ours, theirs in (
        ("conv1d", "ssm_conv1d"), ("in_proj", "ssm_in"), ("norm", "ssm_norm"), ("out_proj", "ssm_out"),
        ("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output"),
        ("up_proj", "ffn_up"), ("down_proj", "ffn_down"), ("fc1_latent_proj", "ffn_latent_down"),
        ("fc2_latent_proj", "ffn_latent_up"), ("gate", "ffn_gate_inp"), ("shared_experts__up_proj", "ffn_up_shexp"),
        ("shared_experts__down_proj", "ffn_down_shexp"),
    ) for end in ("weight", "bias")},
    gate__e_score_correction_bias="exp_probs_b.bias",
    experts__up_proj="ffn_up_exps.weight",
    experts__down_proj="ffn_down_exps.weight",
)  # fmt: skip
KIMI_LINEAR = ways_of(
    "self_attn.forget_gate",
    **DT_BIAS,
    A_log="ssm_a",
    f_a_proj__weight="ssm_f_a.weight",
    f_b_proj__weight="ssm_f_b.weight",
) | {"self_attn.conv1d.weight": (Recipe(tuple(f"ssm_conv1d_{each}.weight" for each in "qkv"), join_kernels, False),)}
KIMI_CHANGES = (Change(r"\.A_log$", lay_logarithm, False),)
