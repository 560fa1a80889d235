"""Checks at load: the device, models that can't be served, and the batches of the trial run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.runners.base import Batch
from tailrace.runners.flat_batch import FlatTokens

TRIAL_TOKENS = 20
TRIALS = 3  # prompts of which one must be reproduced, where numbers are rounded
NOT_CAUSAL = "is an encoder-decoder model; only causal language models are served"


def usable_cores() -> int:
    """Cores that this process may run on, if the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def trial_ids(vocab_size: int, number: int = 0) -> torch.Tensor:
    """A fixed prompt of TRIAL_TOKENS different ids; others with other numbers."""
    return (torch.arange(TRIAL_TOKENS) * 7919 + 11 + 101 * number) % vocab_size


def trial_batch(vocab_size: int, block_size: int, adapted: tuple[tuple[int, torch.Tensor], ...] = ()) -> Batch:
    """The trial prompt as one sequence in the cache's first blocks, with the logits of all its tokens."""
    tokens = torch.arange(TRIAL_TOKENS)
    blocks = -(-TRIAL_TOKENS // block_size)
    return Batch(
        token_ids=trial_ids(vocab_size),
        positions=tokens,
        slot_mapping=tokens,
        query_start=torch.tensor([0, TRIAL_TOKENS], dtype=torch.int32),
        kv_len=torch.tensor([TRIAL_TOKENS], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        wanted=tokens,
        adapted=adapted,
    )


def decode_trial(vocab_size: int, block_size: int, sequences: int, at: int = -1) -> Batch:
    """The trial prompt's last token again, or another one, in `sequences` equal sequences."""
    last = torch.full((sequences,), TRIAL_TOKENS + at)
    blocks = torch.arange(-(-TRIAL_TOKENS // block_size), dtype=torch.int32)
    return Batch(
        token_ids=trial_ids(vocab_size)[last],
        positions=last,
        slot_mapping=last,
        query_start=torch.arange(sequences + 1, dtype=torch.int32),
        kv_len=torch.full((sequences,), TRIAL_TOKENS + at + 1, dtype=torch.int32),
        block_tables=blocks.repeat(sequences, 1),
        wanted=torch.arange(sequences),
    )


def trial_steps(vocab_size: int, block_size: int, far: int, number: int = 0) -> tuple[torch.Tensor, list[Batch]]:
    """Two sequences of TRIAL_TOKENS each, the second at positions from `far` on, in three passes: the first one whole
    beside a chunk of the second; the rest of the second; the last token of both. → (ids [2, T], batches). All
    logits are wanted."""
    prompt = trial_ids(vocab_size, number)
    ids = torch.stack([prompt, prompt.flip(0)])
    blocks = -(-TRIAL_TOKENS // block_size)
    tables = torch.arange(2 * blocks, dtype=torch.int32).view(2, blocks)
    batches = []
    for spans in (((0, 0, 20), (1, 0, 12)), ((1, 12, 20),), ((1, 19, 20), (0, 19, 20))):
        flat = FlatTokens()
        for sequence, first, end in spans:
            flat.add(ids[sequence, first:end].tolist(), end)
        flat.wanted = list(range(len(flat.token_ids)))
        owners = [span[0] for span in spans]
        batch = flat.batch(tables[owners].numpy(), block_size, slots=owners)
        moved = torch.cat([torch.full((end - first,), far * sequence) for sequence, first, end in spans])
        batches.append(replace(batch, positions=batch.positions + moved))
    return ids, batches


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Whatever the model's own code raises becomes one sentence.

    Raises:
        ModelLoadError: instead of any other error.
    """
    try:
        yield
    except (ModelLoadError, ConfigError):
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelLoadError(f"{name} does not run as a paged model, so it can't be served ({text:.200})") from error


@contextmanager
def finite(folder: Path, model: nn.Module) -> Iterator[None]:
    """Where a check of the model fails because numbers of its weights are none, the error names the tensor. Weights are
    looked at only then: a pass has told already.

    Raises:
        ModelLoadError: of the check.
    """
    try:
        yield
    except ModelLoadError as error:
        if (problem := not_finite(model)) is not None:
            raise ModelLoadError(f"{folder}: {problem}") from error
        raise


def not_finite(model: nn.Module) -> str | None:
    """The first of the model's parameters (or of what it has computed from its settings) with NaN or an infinity."""
    for name, tensor in model.named_parameters():
        if not all_finite(tensor):
            return f"tensor {name} has numbers that are NaN or infinite in {str(tensor.dtype).removeprefix('torch.')}"
    for name, tensor in model.named_buffers():
        if name.endswith("inv_freq") and not all_finite(tensor):
            return f"the rope settings of config.json (rope_theta and its kin) make {name} NaN or infinite"
    return None


def all_finite(tensor: torch.Tensor) -> bool:
    """A tensor of anything but floats is."""
    if not tensor.is_floating_point():
        return True
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    return all(bool(torch.isfinite(part.float()).all()) for part in rows.split(4096))


def check_logits(logits: torch.Tensor) -> None:
    """Raise ModelLoadError for logits of the trial that no token can be drawn from. −inf is a mask's."""
    if not bool((logits < math.inf).all()):
        raise ModelLoadError("the logits of a short trial are NaN or infinite: no token could be drawn")


def settle_dtypes(model: Any, dtype: torch.dtype) -> None:
    """Give the parameters of a model that came from a quantized checkpoint `dtype`, but for those still quantized and
    those that the model keeps in float32. transformers leaves each with the dtype of the file or of its scales."""
    kept = model._keep_in_fp32_modules_strict or ()
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float32, torch.bfloat16, torch.float16) and not any(k in name for k in kept):
            parameter.data = parameter.data.to(dtype)


def pick_device(name: str) -> torch.device:
    """ "auto" is the first CUDA GPU if there is one, else the CPU.

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
    """The codes in which keys and values are kept; None: they are kept as they are.

    Raises:
        ConfigError: there are no kernels for them on the device.
    """
    if name != "auto" and device.type != "cpu":
        raise ConfigError(f"model.kv_cache_dtype {name} (--kv-cache-dtype) has kernels on the CPU only; use auto here")
    return KV_CODES[name]


DEQUANTISED = frozenset({"mxfp4", "fp8"})  # transformers reads them with a GPU's kernels, which come from a hub


def dequantise_at_load(config: Any) -> None:
    """Have a checkpoint in MXFP4 (gpt-oss) or float8 turned into the model's dtype, also where transformers sees a
    GPU."""
    settings = getattr(config, "quantization_config", None)
    if isinstance(settings, dict) and settings.get("quant_method") in DEQUANTISED:
        settings["dequantize"] = True


def leave_images_out(config: Any) -> None:
    """Have a model whose images' tokens see each other (Gemma 4) make plain masks: its prompts here are text."""
    text = config.get_text_config()
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        text.use_bidirectional_attention = None


def refuse_encoder_decoder(config: Any) -> None:
    """Raise ModelLoadError for models that are no causal language models."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{config.model_type} {NOT_CAUSAL}")
