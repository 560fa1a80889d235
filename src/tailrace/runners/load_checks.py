"""Checks at load: the device, models that can't be served, and the batches of the trial run."""

from __future__ import annotations

import os
from typing import Any

import torch

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.runners.base import Batch

TRIAL_TOKENS = 20


def usable_cores() -> int:
    """Cores that this process may run on, if the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def trial_ids(vocab_size: int) -> torch.Tensor:
    """A fixed prompt of TRIAL_TOKENS different ids."""
    return (torch.arange(TRIAL_TOKENS) * 7919 + 11) % vocab_size


def trial_batch(
    vocab_size: int,
    block_size: int,
    part: range = range(TRIAL_TOKENS),
    adapted: tuple[tuple[int, torch.Tensor], ...] = (),
) -> Batch:
    """The trial prompt, or a part of it, as one sequence in the cache's first blocks, with the logits of all its
    tokens."""
    tokens = torch.arange(part.start, part.stop)
    blocks = -(-TRIAL_TOKENS // block_size)
    return Batch(
        token_ids=trial_ids(vocab_size)[tokens],
        positions=tokens,
        slot_mapping=tokens,
        query_start=torch.tensor([0, len(part)], dtype=torch.int32),
        kv_len=torch.tensor([part.stop], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        wanted=torch.arange(len(part)),
        adapted=adapted,
    )


def decode_trial(vocab_size: int, block_size: int, sequences: int) -> Batch:
    """The trial prompt's last token again, in `sequences` equal sequences."""
    last = torch.full((sequences,), TRIAL_TOKENS - 1)
    blocks = torch.arange(-(-TRIAL_TOKENS // block_size), dtype=torch.int32)
    return Batch(
        token_ids=trial_ids(vocab_size)[last],
        positions=last,
        slot_mapping=last,
        query_start=torch.arange(sequences + 1, dtype=torch.int32),
        kv_len=torch.full((sequences,), TRIAL_TOKENS, dtype=torch.int32),
        block_tables=blocks.repeat(sequences, 1),
        wanted=torch.arange(sequences),
    )


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


def refuse_stateful(config: Any) -> None:
    """Raise ModelLoadError for models whose state is not a KV cache of past positions."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{config.model_type} is an encoder-decoder model; only causal language models are served")
