"""Do a folder's safetensors files fit its config.json? Read from their headers, before anything is loaded."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError
from tailrace.models.describe import language_config, read_json
from tailrace.models.footprint import FLOATS, HEADS, LAYERS, WIDTH, first, weight_files
from tailrace.models.tensors import FileTensor, stored

log = logging.getLogger(__name__)

LAYER = re.compile(r"model\.layers\.(\d+)\.")
# where methods have written how they quantised, beside config.json's quantization_config
ELSEWHERE = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
SIZES = (
    *(*LAYERS, *HEADS, *WIDTH),
    *("num_key_value_heads", "head_dim", "vocab_size", "n_positions", "max_position_embeddings"),
)
MAX_SIZE = 2**31 - 1  # what the kernels count tokens, ids and columns with
FLOAT8 = ("F8_E4M3", "F8_E5M2")


def check_against_config(folder: Path) -> None:
    """Refuse what would be loaded as something else, or not in any time.

    Raises:
        ModelLoadError: a file is damaged; config.json states a size that no model has, or more layers than the files
            have tensors; or matrices are no floats, and nothing that is read here says how they are quantised.
    """
    config = read_json(folder, "config.json", required=True)
    check_sizes(folder, language_config(config))
    if list(folder.glob("pytorch_model*.bin")):  # then safetensors may be of something else
        return
    tensors = [tensor for path in weight_files(folder) for tensor in stored(path).values()]
    if not tensors:
        return
    layers = first(language_config(config), LAYERS)
    warn_of_more_layers(folder, config, tensors)
    if layers > len(tensors):
        raise ModelLoadError(f"{folder}: config.json states {layers} layers, and its files have {len(tensors)} tensors")
    if config.get("quantization_config") or language_config(config).get("quantization_config"):
        return
    if read_json(folder, "quantize_config.json"):  # AutoGPTQ's (folder.py)
        return
    if (tensor := unscaled(tensors)) is not None:
        there = next((name for name in ELSEWHERE if (folder / name).exists()), "")
        raise ModelLoadError(
            f"{folder}: tensor {tensor.name} is {tensor.dtype}, and config.json has no quantization_config that says "
            f"how it becomes floats{f'; {there} is not read' if there else ''}"
        )


def check_sizes(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelLoadError if the number of layers, or another size, is none."""
    for name in SIZES:
        value = config.get(name)
        if value is None or (isinstance(value, list) and name not in LAYERS):  # some models have one for each layer
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{folder}: config.json: {name} must be a whole number above 0, got {value!s:.80}")
        if value > MAX_SIZE:
            raise ModelLoadError(f"{folder}: config.json: {name} must be at most {MAX_SIZE}, got {value!s:.80}")


def warn_of_more_layers(folder: Path, config: dict[str, Any], tensors: list[FileTensor]) -> None:
    """Say that layers of the files are not used. Layers that predict further tokens follow the model's own."""
    layers = first(config, LAYERS)
    numbers = [int(found[1]) for tensor in tensors if (found := LAYER.match(tensor.name))]
    if layers and max(numbers, default=0) >= layers and not any("nextn" in key or "mtp" in key for key in config):
        log.warning(
            "%s: config.json states %d layers, and its files have %d: the others are not used",
            folder,
            layers,
            max(numbers) + 1,
        )


def unscaled(tensors: list[FileTensor]) -> FileTensor | None:
    """A matrix that is no float by itself. Float8 is one unless there are scales."""
    scales = any("scale" in tensor.name for tensor in tensors)
    return next(
        (
            tensor
            for tensor in tensors
            if len(tensor.shape) > 1
            and tensor.name.endswith("weight")
            and tensor.dtype not in FLOATS
            and (scales or tensor.dtype not in FLOAT8)
        ),
        None,
    )
