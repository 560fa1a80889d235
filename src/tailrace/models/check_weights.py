"""Do a folder's safetensors files fit its config.json? Read from their headers, before anything is loaded."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from tailrace.errors import ModelLoadError
from tailrace.models.config_files import HEADS, LAYERS, WIDTH, find_first_number, language_config, read_json
from tailrace.models.footprint import weight_files
from tailrace.models.tensors import FLOATS, FileTensor, has_plain_floats, index_tensors

log = logging.getLogger(__name__)

LAYER = re.compile(r"model\.layers\.(\d+)\.")
# where methods have written how they quantized, beside config.json's quantization_config
ELSEWHERE = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
SIZES = (
    *(*LAYERS, *HEADS, *WIDTH),
    *("num_key_value_heads", "head_dim", "vocab_size", "n_positions", "max_position_embeddings"),
)
MAX_SIZE = 2**31 - 1  # what the kernels count tokens, ids and columns with
FLOAT8 = ("F8_E4M3", "F8_E5M2")


def check_against_config(folder: Path) -> None:
    """Refuse a folder that would load as another model, or would take forever to load.

    Raises:
        ModelLoadError: a file is damaged. A size in config.json fits no model, or its number of layers exceeds the
            files' number of tensors. Matrices are no floats, and no file that is read here says how they are quantized.
    """
    config = read_json(folder, "config.json", required=True)
    check_sizes(folder, language_config(config))
    if list(folder.glob("pytorch_model*.bin")):  # then safetensors may be of something else
        return
    tensors = [tensor for path in weight_files(folder) for tensor in index_tensors(path).values()]
    if not tensors:
        return
    layers = find_first_number(language_config(config), LAYERS)
    warn_of_more_layers(folder, config, tensors)
    if layers > len(tensors):
        raise ModelLoadError(f"{folder}: config.json states {layers} layers, and its files have {len(tensors)} tensors")
    stated = {
        "config.json has a quantization_config": language_config(config).get("quantization_config"),
        "there is a quantize_config.json": read_json(folder, "quantize_config.json"),  # AutoGPTQ's (folder.py)
    }
    for where, settings in stated.items():
        if settings:
            if has_plain_floats(weight_files(folder)):
                log.warning(
                    "%s: %s%s, and its weights are plain floats: it is ignored", folder, where, format_method(settings)
                )
            return
    if (tensor := find_unscaled(tensors)) is not None:
        there = next((name for name in ELSEWHERE if (folder / name).exists()), "")
        raise ModelLoadError(
            f"{folder}: tensor {tensor.name} is {tensor.dtype}, and config.json has no quantization_config that says "
            f"how it becomes floats{f'; {there} is not read' if there else ''}"
        )


def format_method(settings: Any) -> str:
    """The method of a quantization_config, in brackets; "" if the settings name none."""
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return f" ({method!s:.40})" if method else ""


def check_sizes(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelLoadError if the number of layers, or another size, is none."""
    for name in SIZES:
        value = config.get(name)
        if value is None or (isinstance(value, list) and name not in LAYERS):  # some models have one for each layer
            continue
        # of latent attention this is the part that turns, which may be missing (GLM-5.3)
        least = 0 if name == "head_dim" and "kv_lora_rank" in config else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wanted = f"a whole number from {least}"
            raise ModelLoadError(f"{folder}: config.json: {name} must be {wanted}, got {value!s:.80}")
        if value > MAX_SIZE:
            raise ModelLoadError(f"{folder}: config.json: {name} must be at most {MAX_SIZE}, got {value!s:.80}")


def warn_of_more_layers(folder: Path, config: dict[str, Any], tensors: list[FileTensor]) -> None:
    """Say that layers of the files are not used. Layers that predict further tokens follow the model's own."""
    layers = find_first_number(config, LAYERS)
    numbers = [int(found[1]) for tensor in tensors if (found := LAYER.match(tensor.name))]
    if layers and max(numbers, default=0) >= layers and not any("nextn" in key or "mtp" in key for key in config):
        log.warning(
            "%s: config.json states %d layers, and its files have %d: the others are not used",
            folder,
            layers,
            max(numbers) + 1,
        )


def find_unscaled(tensors: list[FileTensor]) -> FileTensor | None:
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
