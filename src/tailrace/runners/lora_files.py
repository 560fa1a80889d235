"""The files of a LoRA adapter, in PEFT's format, checked against the layers of a model. Knows nothing of batches."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tailrace.base.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_object
from tailrace.base.regex_search import RegexLimitError, match_first
from tailrace.base.stand_ins import read_file, refuse_stand_in
from tailrace.errors import ModelLoadError, take_first_line
from tailrace.runners.load_checks import all_finite

KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
# settings that change more than y + s B (A x), and the values without such an effect
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "use_qalora": (False, None),
    "megatron_config": (None,),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "corda_config": (None,),
    "target_parameters": (None, []),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}

# keys that are read in this file, that repeat what the tensors show, or that say how the adapter was made
HANDLED = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
}
MAX_ALPHA = 1e30
MAX_BYTES = 1 << 36  # of an adapter's file
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NONE_GIVEN = (None, False, "", [], {})


class LinearShape(NamedTuple):
    """A linear layer that adapters may change: its sizes, and the dtype of its weights."""

    out_features: int
    in_features: int
    dtype: torch.dtype


# Name of a module → what an adapter may change; None: the module is no such layer.
Targets = dict[str, LinearShape | None]
Weights = dict[str, tuple[torch.Tensor, torch.Tensor]]  # name of a module → (A, s · B)


def list_targets(model: nn.Module) -> Targets:
    """Return what an adapter may change: the linear layers within the model's decoder layers."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return {
        name: LinearShape(module.out_features, module.in_features, module.weight.dtype)
        if isinstance(module, nn.Linear) and module is not head
        else None
        for name, module in model.named_modules()
    }


def read_adapter(name: str, folder: Path, targets: Targets) -> Weights:
    """Return module name → (A, s · B), in the model's dtype.

    Raises:
        ModelLoadError: see Adapters.
    """
    try:
        config = read_object(folder / ADAPTER_CONFIG)
        refuse_stand_in(folder / ADAPTER_WEIGHTS)
    except ModelLoadError as error:
        raise ModelLoadError(f"lora {name}: {error}") from error
    for field, plain in PLAIN.items():
        if config.get(field) not in plain:
            raise ModelLoadError(
                f"lora {name}: {field} {config.get(field)!r} is not supported ({folder / ADAPTER_CONFIG})"
            )
    for field in sorted(config.keys() - PLAIN.keys() - HANDLED):
        if config[field] not in NONE_GIVEN:
            raise ModelLoadError(f"lora {name}: {field} is not a known setting ({folder / ADAPTER_CONFIG})")
    check_alphas(f"lora {name}", config, folder / ADAPTER_CONFIG)
    check_ranks(f"lora {name}", config, folder / ADAPTER_CONFIG)
    tensors = read_weights(name, folder / ADAPTER_WEIGHTS)
    parts: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        if (at := KEY.fullmatch(key)) is None:
            raise ModelLoadError(f"lora {name}: {key!r} is not supported; only linear layers' lora_A and lora_B are")
        parts[at["module"]][at["part"]] = tensor
    alphas = find_alphas(f"lora {name}", config, list(parts), folder / ADAPTER_CONFIG)
    found = {
        module: read_pair(name, module, both, config | {"lora_alpha": alpha}, targets)
        for (module, both), alpha in zip(parts.items(), alphas, strict=True)
    }
    if not found:
        raise ModelLoadError(f"lora {name}: {folder / ADAPTER_WEIGHTS} holds nothing")
    return found


def read_weights(name: str, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter's file, by name.

    There is no memory map: a file cut short would end this process.

    Raises:
        ModelLoadError: the file can't be read.
    """
    with require_extra("serve"):
        from safetensors.torch import load

    try:
        return dict(sorted(load(read_file(path, MAX_BYTES)).items()))  # in an order that is no chance
    except ModelLoadError as error:
        raise ModelLoadError(f"lora {name}: {error}") from error
    except Exception as error:  # the library raises many kinds
        raise ModelLoadError(f"lora {name}: {path} can't be read: {take_first_line(error)}") from error


def check_alphas(whose: str, config: dict[str, Any], path: Path) -> None:
    """Check lora_alpha, 8 if it is missing, and alpha_pattern.

    Raises:
        ModelLoadError: they are not a finite number, and a table of regexes and such numbers.
    """
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ModelLoadError(f"{whose}: alpha_pattern must be a table of regexes and numbers ({path})")
    for alpha in (config.setdefault("lora_alpha", 8), *patterns.values()):
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MAX_ALPHA:
            raise ModelLoadError(f"{whose}: lora_alpha and alpha_pattern must be numbers, got {alpha!s:.80} ({path})")
    for pattern in patterns:
        try:
            re.compile(pattern)
            re.compile(wrap_pattern(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise ModelLoadError(f"{whose}: alpha_pattern has {pattern!r:.80}, which is no regex ({path})") from error


def check_ranks(whose: str, config: dict[str, Any], path: Path) -> None:
    """Check r, 8 if it is missing, rank_pattern, and use_rslora.

    Raises:
        ModelLoadError: they are not a positive integer, a table of regexes and such integers, and a truth value.
    """
    patterns = config.get("rank_pattern") or {}
    if not isinstance(patterns, dict):
        raise ModelLoadError(f"{whose}: rank_pattern must be a table of regexes and integers ({path})")
    for rank in (config.setdefault("r", 8), *patterns.values()):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ModelLoadError(f"{whose}: r and rank_pattern must be positive integers, got {rank!s:.80} ({path})")
    if not isinstance(config.get("use_rslora") or False, bool):
        raise ModelLoadError(f"{whose}: use_rslora must be true or false ({path})")


def wrap_pattern(pattern: str) -> str:
    """Return the regex that matches the names of modules that end with the pattern, as PEFT has it."""
    return rf"(.*\.)?({pattern})$"


def find_alphas(whose: str, config: dict[str, Any], modules: list[str], path: Path) -> list[float]:
    """Return the alpha of each module: that of the first pattern that matches its name, else lora_alpha.

    Raises:
        ModelLoadError: a pattern takes too much time or memory.
    """
    patterns: dict[str, float] = config.get("alpha_pattern") or {}
    regexes = {wrap_pattern(pattern): pattern for pattern in patterns}
    try:
        places = match_first(list(regexes), modules)
    except RegexLimitError as error:
        pattern = regexes[error.regex]
        raise ModelLoadError(
            f"{whose}: to match alpha_pattern {pattern!r:.80} takes too much time or memory ({path})"
        ) from None
    values = list(patterns.values())
    return [config["lora_alpha"] if place is None else values[place] for place in places]


def read_pair(
    name: str, module: str, both: dict[str, torch.Tensor], config: dict[str, Any], targets: Targets
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A, s · B) of one layer."""
    if module not in targets:
        raise ModelLoadError(f"lora {name}: the model has no {module}")
    if (layer := targets[module]) is None:
        raise ModelLoadError(f"lora {name}: {module} is no linear layer within the model's decoder layers")
    if both.keys() != {"A", "B"}:
        raise ModelLoadError(f"lora {name}: {module} lacks its lora_{({'A', 'B'} - both.keys()).pop()}")
    down, up = both["A"], both["B"]
    for part, tensor in both.items():
        if tensor.dtype not in FLOATS or tensor.dim() != 2:
            found = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
            raise ModelLoadError(f"lora {name}: lora_{part} of {module} must be a matrix of floats, got {found}")
    rank = down.shape[0]
    if rank not in (config["r"], *(config.get("rank_pattern") or {}).values()):
        raise ModelLoadError(f"lora {name}: {module} has rank {rank}, but r is {config['r']!s:.80}")
    if rank < 1 or down.shape != (rank, layer.in_features) or up.shape != (layer.out_features, rank):
        raise ModelLoadError(
            f"lora {name}: {module} is {layer.out_features} × {layer.in_features}, but its A is {tuple(down.shape)} "
            f"and its B {tuple(up.shape)}"
        )
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    down, up = down.to(layer.dtype), (up.float() * scale).to(layer.dtype)
    if not all_finite(down) or not all_finite(up):
        raise ModelLoadError(f"lora {name}: {module} is changed by numbers that are NaN or infinite")
    return down, up
