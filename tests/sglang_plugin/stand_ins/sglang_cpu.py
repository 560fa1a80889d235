"""A plug-in of SGLang for these tests: its torch_native attention, which runs on a CPU, also verifies chains of drafts
and serves `--enable-deterministic-inference`, whose kernels are for a GPU."""

from __future__ import annotations

import copy
from typing import Any

import torch


def register() -> None:
    """Add the hooks. SGLang calls it in each process."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    target = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"
    HookRegistry.register(target, lengthen_batch, HookType.BEFORE)
    target = "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode"
    HookRegistry.register(target, lambda runner: None, HookType.REPLACE)


def lengthen_batch(*args: Any, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a batch of drafts the lengths that the attention reads."""
    *first, batch = args
    if not batch.forward_mode.is_target_verify():
        return None
    batch = copy.copy(batch)
    width = batch.spec_info.draft_token_num
    batch.extend_prefix_lens, batch.extend_seq_lens = batch.seq_lens, torch.full_like(batch.seq_lens, width)
    batch.seq_lens = batch.seq_lens + width
    return (*first, batch), more
