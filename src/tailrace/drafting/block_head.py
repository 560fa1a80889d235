"""A block-parallel drafter from its published checkpoint (DFlash, arXiv 2602.06036): a small stack of decoder layers that fills in all
masks of a block in one pass, looking at the target's states of everything before it. Knows neither sequences nor caches.

Symbols: n rows, H hidden size (the target's), C captured layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.layer import Layer, Norm, Rotary, configuration, packed
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner

SECTION = "dflash_config"
MAX_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Level:
    """One layer of the stack. causal: a block's tokens don't see those after them; window: how many positions each sees, 0 is all."""

    layer: Layer
    norm: Norm
    causal: bool
    window: int


class BlockHead:
    """The stack, between the target's own embedding and output head. Load with `BlockHead.load`.

    captures: `target_layer_ids`. block_size: tokens of a block, the known one at its beginning included. mask: the id of the others.

    Tensors: fc.weight [H, C·H]; hidden_norm.weight, norm.weight; layers.i.* as in Qwen3. config.json: Qwen3's, with block_size and
    dflash_config: mask_token_id, target_layer_ids, which count outputs of layers. Where `layer_types` says sliding_attention, the layer
    is causal and its window counts the block too, as in the published implementation; any other layer sees the whole block.

    `output_multiplier` and `final_logit_softcapping` are applied; `input_embedding_scale` too. DFlash2's convolutions and candidate
    selector are not known here, and refused by the names of their tensors.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        folder, width = checkpoint.folder, runner.hidden_size
        if config.hidden_size != width:
            raise ModelLoadError(f"{folder}: hidden_size must be the target's, {width}, got {config.hidden_size}")
        self.runner = runner
        self.captures = captured_layers(checkpoint, runner.num_layers)
        self.block_size = checkpoint.number("block_size", SECTION, 2, MAX_BLOCK)
        self.mask = checkpoint.number("mask_token_id", SECTION, 0, runner.vocab_size - 1)
        self.fc = packed(checkpoint, len(self.captures) * width, ("fc", width))
        self.feature_norm = Norm(checkpoint.take("hidden_norm.weight", width), config.rms_norm_eps)
        self.levels = [level(checkpoint, config, i) for i in range(config.num_hidden_layers)]
        self.norm = Norm(checkpoint.take("norm.weight", width), config.rms_norm_eps)
        self.rotary = Rotary(config, runner.dtype, runner.device)
        scales = (checkpoint.value(name, SECTION) for name in ("input_embedding_scale", "output_multiplier"))
        self.embedding_scale, self.multiplier = (1.0 if scale is None else float(scale) for scale in scales)
        self.softcap = float(checkpoint.value("final_logit_softcapping", SECTION) or 0.0)

    @classmethod
    def load(cls, folder: Path, runner: LayeredRunner) -> BlockHead:
        """The head in a published folder, for this target.

        Raises:
            ModelLoadError: a tensor or a number of config.json is missing or does not fit the target; it says which.
        """
        checkpoint = Checkpoint(folder, runner.dtype, runner.device)
        head = cls(checkpoint, configuration(checkpoint), runner)
        checkpoint.finish()
        return head

    @property
    def position_bytes(self) -> int:
        """Of cache per position, over all layers."""
        return sum(level.layer.position_bytes for level in self.levels)

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        """The target's captured states [n, C·H] → what every layer makes keys and values of, [n, H]."""
        return self.feature_norm(kernels.linear(hidden, self.fc))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [n] → [n, H]."""
        rows = self.runner.embed(token_ids)
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        """The last layer's output [n, H] → [n, V]."""
        logits = self.runner.head(self.norm(stream))
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def level(checkpoint: Checkpoint, config: Any, index: int) -> Level:
    """Layer `index` of the stack."""
    prefix = f"layers.{index}."
    types = getattr(config, "layer_types", None)
    sliding = bool(types) and types[index] == "sliding_attention"
    causal = checkpoint.config.get("is_causal")
    if sliding and (causal is False or not config.sliding_window):
        raise ModelLoadError(
            f"{checkpoint.folder}: a sliding window needs is_causal and a sliding_window of at least 1"
        )
    norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", config.hidden_size), config.rms_norm_eps)
    return Level(
        Layer(checkpoint, prefix, config, config.hidden_size), norm, sliding if causal is None else bool(causal),
        int(config.sliding_window) if sliding else 0,
    )  # fmt: skip


def captured_layers(checkpoint: Checkpoint, num_layers: int) -> tuple[int, ...]:
    """The target's layers whose outputs the head takes."""
    trained = checkpoint.config.get("num_target_layers", num_layers)
    if trained != num_layers:
        raise ModelLoadError(
            f"{checkpoint.folder}: num_target_layers must be the target's, {num_layers}, got {trained}"
        )
    layers = checkpoint.value("target_layer_ids", SECTION)
    whole = isinstance(layers, list) and layers and all(isinstance(i, int) for i in layers)
    if not whole or len(set(layers)) < len(layers) or not all(0 <= i < num_layers for i in layers):
        raise ModelLoadError(
            f"{checkpoint.folder}: target_layer_ids must be a list of different integers in [0, {num_layers - 1}], "
            f"got {layers!r}"
        )
    return tuple(layers)
