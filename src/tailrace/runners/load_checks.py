"""Checks at load: the device, and models that can't be served."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.tensors import BLOCKS_METHOD, has_plain_floats

log = logging.getLogger(__name__)
NOT_CAUSAL = "is an encoder-decoder model; only causal language models are served"


def usable_cores() -> int:
    """Return the number of cores that this process may run on, or of all cores if the system does not know."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def explain_errors(name: str) -> Iterator[None]:
    """Turn any error of the model's own code into one sentence.

    Raises:
        ModelLoadError: in place of any other error.
    """
    try:
        yield
    except (ModelLoadError, ConfigError):
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelLoadError(f"{name} does not run as a paged model, so it can't be served ({text:.200})") from error


@contextmanager
def report_nonfinite(folder: Path, model: nn.Module) -> Iterator[None]:
    """If a check fails because weights are NaN or infinite, name the tensor in the error. Weights are searched only
    after a failure.

    Raises:
        ModelLoadError: the check's error, or the error that names the tensor.
    """
    try:
        yield
    except ModelLoadError as error:
        if (problem := describe_nonfinite(model)) is not None:
            raise ModelLoadError(f"{folder}: {problem}") from error
        raise


def describe_nonfinite(model: nn.Module) -> str | None:
    """Return a sentence about the first parameter with NaN or an infinity, or about such frequencies of rope, which the
    model computes from its settings. None: there is no such tensor."""
    for name, tensor in model.named_parameters():
        if not all_finite(tensor):
            return f"tensor {name} has numbers that are NaN or infinite in {str(tensor.dtype).removeprefix('torch.')}"
    for name, tensor in model.named_buffers():
        if name.endswith("inv_freq") and not all_finite(tensor):
            return f"the rope settings of config.json (rope_theta and its kin) make {name} NaN or infinite"
    return None


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers are finite; integer tensors always are."""
    if not tensor.is_floating_point():
        return True
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    return all(bool(torch.isfinite(part.float()).all()) for part in rows.split(4096))


def check_logits(logits: torch.Tensor) -> None:
    """Raise ModelLoadError for logits of the trial from which no token can be drawn. −inf is allowed: models mask."""
    if not bool((logits < math.inf).all()):
        raise ModelLoadError("the logits of a short trial are NaN or infinite: no token could be drawn")


def settle_dtypes(model: Any, dtype: torch.dtype) -> None:
    """Convert the parameters of a model from a quantized checkpoint to `dtype`.

    Parameters that are still quantized, and those that the model keeps in float32, do not change. transformers leaves
    each parameter with the dtype of the file or of its scales.
    """
    kept = model._keep_in_fp32_modules_strict or ()
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float32, torch.bfloat16, torch.float16) and not any(k in name for k in kept):
            parameter.data = parameter.data.to(dtype)


def pick_device(name: str) -> torch.device:
    """Return the device of this name. "auto" is the first CUDA GPU if there is one, else the CPU.

    Raises:
        ConfigError: the device is unknown or missing.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {error}") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device {name!r} is not available; use cpu" + (", cuda" * torch.cuda.is_available()))
    return device


KV_CODES = {  # by model.kv_cache_dtype
    "auto": None,
    "int8": torch.int8,
    "int8_per_token_head": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_per_token_head": torch.float8_e4m3fn,
}


def pick_kv_code(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of the codes in which keys and values are stored. None: they are stored in the model's dtype.

    Raises:
        ConfigError: the device has no kernels for such codes.
    """
    if name != "auto" and device.type != "cpu":
        raise ConfigError(f"model.kv_cache_dtype {name} (--kv-cache-dtype) has kernels on the CPU only; use auto here")
    return KV_CODES[name]


DEQUANTIZED = frozenset({"mxfp4", "fp8"})  # transformers would read them by GPU kernels from a hub


def dequantize_at_load(config: Any) -> None:
    """Make transformers convert a checkpoint in MXFP4 (gpt-oss) or float8 to the model's dtype, with a GPU too."""
    settings = getattr(config, "quantization_config", None)
    if isinstance(settings, dict) and settings.get("quant_method") in DEQUANTIZED:
        settings["dequantize"] = True


def forget_quantization(folder: Path, config: Any) -> None:
    """Drop the quantization_config of a model whose weights are plain floats. The front end has logged the case
    (models/check_weights.py)."""
    parts = [part for part in (config, config.get_text_config()) if hasattr(part, "quantization_config")]
    if parts and not any(folder.glob("pytorch_model*.bin")) and has_plain_floats(folder.glob("model*.safetensors")):
        for part in parts:
            vars(part).pop("quantization_config", None)


def blocks_config(config: Any) -> dict[str, Any] | None:
    """Return the `quantization_config` of a model whose weights are in blocks, else None."""
    settings = getattr(config, "quantization_config", None)
    return settings if isinstance(settings, dict) and settings.get("quant_method") == BLOCKS_METHOD else None


def admit_blocks(config: Any, device: torch.device) -> None:
    """Let transformers load weights in blocks, and log their types. Do nothing for other models.

    Raises:
        ConfigError: the device has no kernels for blocks.
    """
    settings = blocks_config(config)
    if settings is None:
        return
    if device.type != "cpu":
        raise ConfigError(
            "model.weights quantized and model.quantize have kernels on the CPU only; leave them out, or set "
            "model.device to cpu"
        )
    import_module("tailrace.runners.quantizer")
    log.info("%s", describe_blocks(settings))


def describe_blocks(settings: dict[str, Any]) -> str:
    """Return how many tensors are in blocks of which type, and how many are not, with the reason."""
    kept = Counter(settings.get("names", {}).get(str(number), str(number)) for number in settings["types"].values())
    verb = settings.get("verb", "stay")
    parts = [f"{count} tensors {verb} {name}" for name, count in sorted(kept.items())]
    return "; ".join([*parts, *(f"{count} {why}" for why, count in settings.get("left", {}).items())])


def use_causal_masks(config: Any) -> None:
    """Make a model whose image tokens attend to each other (Gemma 4) use causal masks. Prompts are text only."""
    text = config.get_text_config()
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        text.use_bidirectional_attention = None


def refuse_encoder_decoder(config: Any) -> None:
    """Raise ModelLoadError for an encoder-decoder model."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{config.model_type} {NOT_CAUSAL}")
