"""Which of a GGUF file's tensors a parameter of the model is made of, and how. Part of convert.py's process; reads no
values.

llama.cpp's names come from the package gguf. Where one parameter is made of several tensors, or of a part of one, it is
listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

from tailrace.errors import ModelLoadError

Join = Callable[[list[np.ndarray]], np.ndarray]
Settings = dict[str, Any]


class Recipe(NamedTuple):
    """sources: tensors; join: their values → the parameter's. rows: it only moves rows, so blocks survive it. done: the
    architecture's changes are not for it. experts: the same for matrices of experts as [E, outputs, inputs]; it only
    moves rows."""

    sources: tuple[str, ...]
    join: Join
    rows: bool = True
    done: bool = False
    experts: Join | None = None


def take_first(values: list[np.ndarray]) -> np.ndarray:
    return values[0]


def join_rows(values: list[np.ndarray]) -> np.ndarray:
    """Join matrices, or biases, one below the other."""
    return np.concatenate(values)


def join_experts(values: list[np.ndarray]) -> np.ndarray:
    """Join each expert's gate and up projection, the gate's rows first."""
    return np.concatenate(values, 1)


def weave_experts(values: list[np.ndarray]) -> np.ndarray:
    """Return gpt-oss's gate and up projections of each expert with their outputs interleaved."""
    gate, up = values
    return np.stack([gate, up], 2).reshape(len(gate), -1, *gate.shape[2:])


def weave_matrices(values: list[np.ndarray]) -> np.ndarray:
    return np.swapaxes(weave_experts(values), 1, 2)


def turn_matrices(values: list[np.ndarray]) -> np.ndarray:
    return np.swapaxes(values[0], 1, 2)


def add_row(values: list[np.ndarray]) -> np.ndarray:
    """Return a vector as a matrix of one row."""
    return values[0].reshape(1, -1)


def join_latent(values: list[np.ndarray]) -> np.ndarray:
    """Join DeepSeek's keys [heads, rank, entries] and values [heads, entries, rank] of each head, one below the
    other."""
    keys, rest = values
    return np.concatenate([np.swapaxes(keys, 1, 2), rest], 1).reshape(-1, rest.shape[-1])


def part_of(start: int, size: int) -> Join:
    """Return a function that takes some of the rows."""
    return lambda values: values[0][start : start + size]


GATES = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
DOWN = Recipe(("ffn_down_exps.weight",), take_first, experts=take_first)
# end of a parameter's name → ways to make it, the first whose tensors are there
WAYS: dict[str, tuple[Recipe, ...]] = {
    "mlp.experts.gate_up_proj": (
        Recipe(("ffn_gate_up_exps.weight",), take_first, False, experts=take_first),
        Recipe(GATES, join_experts, False, experts=join_experts),
    ),
    "mlp.gate_up_proj.weight": (
        Recipe(("ffn_gate.weight", "ffn_up.weight"), join_rows),
        Recipe(("ffn_up.weight",), take_first),
    ),
    "mlp.gate.e_score_correction_bias": (Recipe(("exp_probs_b.bias",), take_first),),
    "mlp.shared_expert_gate.weight": (Recipe(("ffn_gate_inp_shexp.weight",), add_row, False),),
    "linear_attn.dt_bias": (Recipe(("ssm_dt.bias",), take_first),),
    "linear_attn.A_log": (Recipe(("ssm_a",), take_first), Recipe(("ssm_a.weight",), take_first)),
    "self_attn.kv_b_proj.weight": (
        Recipe(("attn_k_b.weight", "attn_v_b.weight"), join_latent, False),
        Recipe(("attn_kv_b.weight",), take_first),
    ),
    **{
        f"self_attn.qkv_proj.{kind}": (
            Recipe((f"attn_qkv.{kind}",), take_first),
            Recipe((f"attn_q.{kind}", f"attn_k.{kind}", f"attn_v.{kind}"), join_rows),
        )
        for kind in ("weight", "bias")
    },
}
GEMMA4: dict[str, tuple[Recipe, ...]] = {
    "layer_scalar": (Recipe(("layer_output_scale.weight",), take_first),),
    "router.scale": (Recipe(("ffn_gate_inp.scale",), take_first),),
    "router.per_expert_scale": (Recipe(("ffn_down_exps.scale",), take_first),),
    "experts.gate_up_proj": WAYS["mlp.experts.gate_up_proj"],
}
LFM2_MOE: dict[str, tuple[Recipe, ...]] = {
    "feed_forward.expert_bias": WAYS["mlp.gate.e_score_correction_bias"],
    "feed_forward.experts.gate_up_proj": WAYS["mlp.experts.gate_up_proj"],
    "feed_forward.experts.down_proj": (DOWN,),
}
LLAMA4: dict[str, tuple[Recipe, ...]] = {
    "feed_forward.experts.gate_up_proj": (Recipe(GATES, lambda values: turn_matrices([join_experts(values)]), False),),
    "feed_forward.experts.down_proj": (Recipe(("ffn_down_exps.weight",), turn_matrices, False),),
}
ERNIE_MOE: dict[str, tuple[Recipe, ...]] = {
    "mlp.gate.moe_statics.e_score_correction_bias": (Recipe(("exp_probs_b.bias",), add_row, False),),
}
NEXT_WAYS: dict[str, tuple[Recipe, ...]] = {
    "linear_attn.in_proj_qkvz.weight": (
        Recipe(("attn_qkv.weight", "attn_gate.weight"), join_rows),
        Recipe(("ssm_in.weight",), take_first, done=True),  # older files
    ),
}
MINIMAX = {"mlp.e_score_correction_bias": WAYS["mlp.gate.e_score_correction_bias"]}
GRANITE_MOE: dict[str, tuple[Recipe, ...]] = {
    "block_sparse_moe.router.weight": (Recipe(("ffn_gate_inp.weight",), take_first),),
    "block_sparse_moe.experts.gate_up_proj": WAYS["mlp.experts.gate_up_proj"],
    "block_sparse_moe.experts.down_proj": (DOWN,),
    "shared_mlp.input_linear.weight": (Recipe(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), join_rows),),
}
GPT_OSS: dict[str, tuple[Recipe, ...]] = {
    "mlp.experts.gate_up_proj": (Recipe(GATES, weave_matrices, False, experts=weave_experts),),
    "mlp.experts.gate_up_proj_bias": (Recipe(("ffn_gate_exps.bias", "ffn_up_exps.bias"), weave_experts, False),),
    "mlp.experts.down_proj": (Recipe(("ffn_down_exps.weight",), turn_matrices, False, experts=take_first),),
    "mlp.experts.down_proj_bias": (Recipe(("ffn_down_exps.bias",), take_first, False),),
}


class Change(NamedTuple):
    """A conversion of a parameter's values.

    - pattern: a pattern of the parameter's name.
    - make: returns the function that converts, given the settings and the match.
    - rows: the conversion only moves rows.
    """

    pattern: str
    make: Callable[[Settings, re.Match[str]], Callable[[np.ndarray], np.ndarray]]
    rows: bool = True


def unpermute_rows(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reorders rows: pairs are (i, i + half), and the file has them as neighbours."""
    heads = settings["num_attention_heads" if found[1] == "q" else "num_key_value_heads"]
    return lambda rows: rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def subtract_one(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that subtracts the 1 that the file's norms have added."""
    return lambda values: values - 1


def regroup_heads(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that puts a gated delta net's value heads next to their key head. The file has the first value
    head of every key head, then every second …"""
    keys, values = settings["linear_num_key_heads"], settings["linear_num_value_heads"]
    size = settings["linear_value_head_dim"] if found[1] in ("in_proj_z", "in_proj_qkv", "conv1d", "out_proj") else 1
    order = np.arange(values * size).reshape(-1, keys, size).swapaxes(0, 1).reshape(-1)
    if found[1] in ("in_proj_qkv", "conv1d"):
        first = 2 * settings["linear_key_head_dim"] * keys  # queries and keys stay
        order = np.concatenate([np.arange(first), first + order])
    if found[1] == "out_proj":
        return lambda matrix: matrix[:, order]
    if found[1] == "conv1d":
        return lambda kernel: kernel[order][:, None]
    return (lambda rows: np.log(-rows)[order]) if found[1] == "A_log" else lambda rows: rows[order]


def regroup_next(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that puts each key head's queries, keys, values and gates together. The file has all queries,
    then all keys …"""
    keys, values = settings["linear_num_key_heads"], settings["linear_num_value_heads"]
    size, wide = settings["linear_key_head_dim"], values // keys * settings["linear_value_head_dim"]
    sizes = (size, size, wide, wide)
    starts = np.cumsum((0, *(keys * each for each in sizes)))
    parts = [start + np.arange(keys * each).reshape(keys, each) for start, each in zip(starts, sizes, strict=False)]
    order = np.concatenate(parts, 1).reshape(-1)
    return lambda rows: rows[order]


def take_logarithm(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that takes the logarithm of decays; they are stored as −exp."""
    return lambda values: np.log(-values)


def add_axis(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that adds the axis that a convolution's kernel lacks: it is stored as a matrix."""
    return lambda kernel: kernel[:, None]


def lay_down(settings: Settings, found: re.Match[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that transposes GPT-2's matrices to [inputs, outputs]."""
    return np.transpose


PERMUTED = (Change(r"self_attn\.([qk])_proj\.(?:weight|bias)$", unpermute_rows),)
SHIFTED = (Change(r"norm\.weight$", subtract_one, False),)
DELTA = (
    Change(r"(?<!linear_attn\.)(?:q_|k_|layer|model\.|\.[eh]|head\.)norm\.weight$", subtract_one, False),
    Change(r"linear_attn\.(in_proj_z|in_proj_qkv|in_proj_a|in_proj_b)\.weight$", regroup_heads),
    Change(r"linear_attn\.(conv1d|out_proj)\.weight$", regroup_heads, False),
    Change(r"linear_attn\.(dt_bias|A_log)$", regroup_heads, False),
)
NEXT = (
    DELTA[0],
    Change(r"linear_attn\.in_proj_qkvz\.weight$", regroup_next),
    Change(r"linear_attn\.conv1d\.weight$", add_axis, False),
    Change(r"linear_attn\.A_log$", take_logarithm, False),
)
LYING = (Change(r"(c_attn|c_proj|c_fc)\.weight$", lay_down, False),)
SHORT = (Change(r"conv\.conv\.weight$", add_axis, False),)
LAYER = re.compile(r"(.*?\.(\d+)\.)(.+)")


def chain_join(join: Join, apply: Callable[[np.ndarray], np.ndarray]) -> Join:
    """Return a function that applies both, one after the other."""
    return lambda values: apply(join(values))


class Recipes:
    """The recipes of one file's parameters. tensors: names in the file. layers: of the file."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        tensors: Collection[str],
        ways: Mapping[str, tuple[Recipe, ...]],
        changes: tuple[Change, ...],
        layers: int,
    ) -> None:
        known = {value: key for key, value in MODEL_ARCH_NAMES.items()}
        if name not in known:
            raise ModelLoadError(f"the installed package gguf does not know the architecture {name}: upgrade it")
        self._map = get_tensor_name_map(known[name], layers)
        self._settings, self._tensors, self._changes = settings, tensors, changes
        self._ways = {**WAYS, **ways}

    def find(self, name: str) -> Recipe | None:
        """Return how a parameter is made; None if the file lacks a tensor that it needs."""
        recipe = self._find_plain_recipe(name) or self._find_listed_recipe(name) or self._find_split_recipe(name)
        if recipe is None or recipe.done:
            return recipe
        for change in self._changes:
            if found := re.search(change.pattern, name):
                made = chain_join(recipe.join, change.make(self._settings, found))
                return recipe._replace(join=made, rows=recipe.rows and change.rows, experts=None)
        return recipe

    def _find_plain_recipe(self, name: str) -> Recipe | None:
        """Return one tensor as it is."""
        base, dot, kind = name.rpartition(".")
        found = self._map.get_name(base) if kind in ("weight", "bias") else self._map.get_name(name)
        source = f"{found}{dot}{kind}" if kind in ("weight", "bias") else f"{found}.weight"
        if found is not None and kind not in ("weight", "bias") and found in self._tensors:
            source = found
        ways = LAYER.fullmatch(name)
        if source not in self._tensors or (ways and ways[3] in self._ways):
            return None
        return Recipe((source,), take_first, experts=take_first)

    def _find_listed_recipe(self, name: str) -> Recipe | None:
        """Return a parameter of the table."""
        layer = LAYER.fullmatch(name)
        if layer is None:
            return None
        for way in self._ways.get(layer[3], ()):
            sources = tuple(f"blk.{layer[2]}.{source}" for source in way.sources)
            if all(source in self._tensors for source in sources):
                return way._replace(sources=sources)
        return None

    def _find_split_recipe(self, name: str) -> Recipe | None:
        """Return queries, keys or values of a tensor that has all three."""
        layer = LAYER.fullmatch(name)
        found = re.fullmatch(r"self_attn\.([qkv])_proj\.(weight|bias)", layer[3]) if layer else None
        if layer is None or found is None or (source := f"blk.{layer[2]}.attn_qkv.{found[2]}") not in self._tensors:
            return None
        size = self._settings["head_dim"]
        queries, keys = self._settings["num_attention_heads"] * size, self._settings["num_key_value_heads"] * size
        start, rows = {"q": (0, queries), "k": (queries, keys), "v": (queries + keys, keys)}[found[1]]
        return Recipe((source,), part_of(start, rows))
