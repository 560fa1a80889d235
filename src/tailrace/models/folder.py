"""Converts a folder in Hugging Face's layout to a folder that runners load, and keeps it in the cache.

This concerns weights that are quantized at the first load, and packed weights (GPTQ, AWQ, compressed-tensors).

`python -m tailrace.models.convert_folder` does the work in a process of its own, so that this one never imports torch.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models.check_weights import check_against_config
from tailrace.models.child import run_child
from tailrace.models.config_files import language_config, read_json
from tailrace.models.footprint import weight_files
from tailrace.models.progress import Progress
from tailrace.models.store import make_once
from tailrace.models.tensors import has_plain_floats

PACKED = ("gptq", "awq", "compressed-tensors")  # methods whose matrices convert_folder.py reads
FORMAT = 2  # of converted folders; raising it makes older ones unused
SAMPLE_BYTES = 1 << 16  # of a file of weights, read at both ends for the key


def prepare_folder(folder: Path, config: ModelConfig, progress: Progress, label: str) -> Path:
    """Return the folder itself, or its converted copy. Making the copy takes minutes, finding it milliseconds.

    Raises:
        ModelLoadError: the weights don't fit config.json, the settings don't fit the folder, or it can't be converted.
    """
    check_against_config(folder)
    method = read_quantization(folder).get("quant_method")
    if config.quantize != "none" and method:
        raise ModelLoadError(f"model.quantize is for folders of plain floats, and {label} is quantized by {method}")
    if config.quantize == "none" and config.weights == "quantized" and method not in PACKED:
        raise ModelLoadError(
            f"model.weights quantized keeps codes as they are in a file (GGUF, {', '.join(PACKED)}), and {label} has "
            f"{f'those of {method}' if method else 'floats; --quantize q8_0 (or another type) makes blocks of them'}"
        )
    if config.quantize == "none" and method not in PACKED:
        return folder
    target = target_folder(folder, config, label)
    return make_once(
        target,
        lambda made: run_converter(folder, made, config, progress),
        on_wait=lambda: progress.start_stage(f"waiting for another process that converts {label}"),
    )


def read_quantization(folder: Path) -> dict[str, Any]:
    """Return the quantization settings of config.json, or of the file that AutoGPTQ once wrote. Return {} if there are
    none, or if the weights are plain floats."""
    config = read_json(folder, "config.json", required=True)
    found, older = language_config(config).get("quantization_config"), read_json(folder, "quantize_config.json")
    settings = found if isinstance(found, dict) and found else older and {"quant_method": "gptq", **older}
    return settings if settings and not has_plain_floats(weight_files(folder)) else {}


def pick_weight_format(config: ModelConfig) -> str:
    """What becomes of matrices: dequantized, quantized as they are in the file, or a type of blocks."""
    return config.weights if config.quantize == "none" else config.quantize


def target_folder(folder: Path, config: ModelConfig, label: str) -> Path:
    """The folder of the conversion. Its name depends on the size and time of every file, on both ends of the weights,
    on what becomes of them and on FORMAT."""
    digest = hashlib.blake2b(f"{FORMAT} {config.dtype} {pick_weight_format(config)}".encode(), digest_size=8)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(max(0, stat.st_size - SAMPLE_BYTES))
                digest.update(file.read(SAMPLE_BYTES))
    readable = re.sub(r"[^\w.-]+", "-", label)
    return (
        Path(config.cache_dir).expanduser()
        / "models"
        / f"{readable}-{config.dtype}-{pick_weight_format(config)}-{digest.hexdigest()}"
    )


def run_converter(folder: Path, made: Path, config: ModelConfig, progress: Progress) -> dict[str, Any]:
    """Convert in a child process, show its progress, and raise its errors."""
    progress.start_stage(f"converting {folder.name} to {config.dtype} {pick_weight_format(config)} (once)")
    arguments = [str(folder), str(made), config.dtype, pick_weight_format(config), str(int(config.trust_remote_code))]
    problem = run_child("tailrace.models.convert_folder", arguments, progress, folder.name)
    if problem is not None:
        raise ModelLoadError(f"{folder} can't be converted: {problem}")
    return {"source": str(folder), "dtype": config.dtype, "weights": pick_weight_format(config), "format": FORMAT}
