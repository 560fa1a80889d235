"""EAGLE's heads from their published checkpoints: EAGLE-1 and -2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840). What a
head computes with what it is given; knows neither sequences nor caches.

Symbols: n rows, H the head's hidden size, Ht the target's, C captured layers, V the target's vocabulary, Vd the head's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.layer import Layer, Norm, Rotary, configuration, packed
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner


class Head(Protocol):
    """What the versions have in common. States are [n, H]."""

    captures: tuple[int, ...]
    layer: Layer
    rotary: Rotary

    def state(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """What the target has computed, [n, C·Ht] → what stands in for the layer's own output of the position before."""
        ...

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [n] and states → what the layer's projections take, [n, width], and its residual [n, H]."""
        ...

    def logits(self, state: torch.Tensor, /) -> torch.Tensor:
        """The layer's output → [n, V]; −inf for tokens that the head does not know."""
        ...


class Eagle1:
    """EAGLE-1 and -2, whose checkpoints are the same: embedding and state in one projection, then a layer without its first norm.

    Tensors: fc.weight [H, 2H], over the embedding, then the state; fc.bias in some; layers.0.*; embed_tokens.weight in some, else the
    target's. The state is what enters the target's output head, and that is the head's own, too.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        width = runner.hidden_size
        if config.hidden_size != width:
            raise ModelLoadError(
                f"{checkpoint.folder}: hidden_size must be the target's, {width}, got {config.hidden_size}"
            )
        self.captures = (runner.num_layers,)
        self.embed = embedding(checkpoint, width, runner)
        self.fc = packed(checkpoint, 2 * width, ("fc", width))
        self.layer = Layer(checkpoint, "layers.0.", config, width)
        self.rotary = Rotary(config, runner.dtype, checkpoint.device)
        self.logits = runner.head
        checkpoint.tensors.pop("lm_head.weight", None)  # a copy of the target's, in some

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fused = kernels.linear(torch.cat([self.embed(token_ids), state], -1), self.fc)
        return fused, fused


class Eagle3:
    """EAGLE-3: the states of several layers of the target, fused; the projections take embedding and state, each normed.

    Tensors: fc.weight [H, C·Ht]; midlayer.* (layers.0.* where the speculators library wrote it) with hidden_norm, input_layernorm and
    projections 2H wide; norm.weight; lm_head.weight [Vd, H]; d2t [Vd] in most: its entry i plus i is the target's id of token i, and
    without it Vd is V; embed_tokens.weight in some, else the target's. t2d says the same as d2t and is not read.

    `norm_before_residual` (speculators): the residual is the normed state.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint else "layers.0."
        self.captures = fused_layers(checkpoint, runner.num_layers)
        self.embed = embedding(checkpoint, width, runner)
        self.fc = packed(checkpoint, len(self.captures) * runner.hidden_size, ("fc", width))
        self.layer = Layer(checkpoint, prefix, config, 2 * width)
        self.embed_norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", width), eps)
        self.state_norm = Norm(checkpoint.take(f"{prefix}hidden_norm.weight", width), eps)
        self.norm = Norm(checkpoint.take("norm.weight", width), eps)
        self.rotary = Rotary(config, runner.dtype, checkpoint.device)
        self.normed_residual = bool(checkpoint.config.get("norm_before_residual", False))
        self.token_ids, self.vocab_size = draft_vocabulary(checkpoint, runner.vocab_size), runner.vocab_size
        size = runner.vocab_size if self.token_ids is None else len(self.token_ids)
        self.head = packed(checkpoint, width, ("lm_head", size))

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        return kernels.linear(hidden, self.fc)

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.state_norm(state)
        entering = torch.cat([self.embed_norm(self.embed(token_ids)), normed], -1)
        return entering, normed if self.normed_residual else state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        logits = kernels.linear(self.norm(state), self.head)
        if self.token_ids is None:
            return logits
        spread = logits.new_full((len(logits), self.vocab_size), float("-inf"))
        spread[:, self.token_ids] = logits
        return spread


def load_head(folder: Path, runner: LayeredRunner) -> Head:
    """The head in a published folder, for this target. EAGLE-3 is known by its norm of the state.

    Raises:
        ModelLoadError: a tensor or a number of config.json is missing or does not fit the target; it says which.
    """
    checkpoint = Checkpoint(folder, runner.dtype, runner.device)
    config = configuration(checkpoint)
    if config.num_hidden_layers != 1:
        raise ModelLoadError(f"{folder}: num_hidden_layers must be 1, got {config.num_hidden_layers}")
    third = any(f"{prefix}.hidden_norm.weight" in checkpoint for prefix in ("midlayer", "layers.0"))
    head = (Eagle3 if third else Eagle1)(checkpoint, config, runner)
    checkpoint.finish()
    return head


def fused_layers(checkpoint: Checkpoint, num_layers: int) -> tuple[int, ...]:
    """The target's layers whose outputs an EAGLE-3 head takes: what feeds layers 2, L / 2 and L − 3 (so the published implementation), or
    what config.json pins.

    Of its two ways to pin them we take `eagle_config.eagle_aux_hidden_state_layer_ids` to count layers' outputs, and a top-level
    `eagle_aux_hidden_state_layer_ids` to count inputs, as the servers do that read them; the files themselves don't say.
    """
    nested = (checkpoint.config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    pinned = checkpoint.config.get("eagle_aux_hidden_state_layer_ids") or (2, num_layers // 2, num_layers - 3)
    try:
        layers = tuple(int(i) for i in nested) if nested else tuple(int(i) - 1 for i in pinned)
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"{checkpoint.folder}: eagle_aux_hidden_state_layer_ids: {error}") from error
    if len(set(layers)) < len(layers) or not all(0 <= i < num_layers for i in layers):
        raise ModelLoadError(
            f"{checkpoint.folder}: takes the outputs of layers {list(layers)}, which must be different ones in "
            f"[0, {num_layers - 1}] of the target"
        )
    return layers


def draft_vocabulary(checkpoint: Checkpoint, vocab_size: int) -> torch.Tensor | None:
    """The target's id of each of the head's tokens, int64 [Vd]; None: they are the same."""
    if "d2t" not in checkpoint:
        return None
    offsets = checkpoint.take("d2t", *checkpoint.shape("lm_head.weight")[:1])
    token_ids = torch.arange(len(offsets), device=offsets.device) + offsets.to(torch.int64)
    if len(token_ids.unique()) < len(token_ids) or not bool(((token_ids >= 0) & (token_ids < vocab_size)).all()):
        raise ModelLoadError(f"{checkpoint.folder}: d2t must lead to different tokens in [0, {vocab_size - 1}]")
    return token_ids


def embedding(checkpoint: Checkpoint, width: int, runner: LayeredRunner) -> Any:
    """int64 [n] → [n, H]: the checkpoint's own, or the target's where it has none or the same."""
    own = checkpoint.maybe("embed_tokens.weight", runner.vocab_size, width)
    if own is None and width != runner.hidden_size:
        raise ModelLoadError(
            f"{checkpoint.folder}: there is no tensor embed_tokens.weight, and hidden_size is not the target's "
            f"({width} and {runner.hidden_size})"
        )
    if own is None or (width == runner.hidden_size and torch.equal(own, runner.embed(torch.arange(runner.vocab_size)))):
        return runner.embed
    return lambda token_ids: F.embedding(token_ids.to(own.device), own)
