"""A block-parallel drafter from its published checkpoint (DFlash, arXiv 2602.06036): a small stack of decoder layers
that fills in all masks of a block in one pass, looking at the target's states of everything before it. Knows neither
sequences nor caches.

Symbols: n rows, H hidden size (the target's), C captured layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.ends import OutputHead, embedding, own_embedding
from tailrace.drafting.keys import refuse_unknown
from tailrace.drafting.layer import DecoderLayer, Norm, Rotary, configuration, packed
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner

SECTION = "dflash_config"
MAX_BLOCK = 256
KEYS = frozenset(
    (
        "block_size",
        "mask_token_id",
        "target_layer_ids",
        "aux_hidden_state_layer_ids",
        "num_target_layers",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "use_swa",
        "swa_window_size",
        "is_causal",
        "causal",
        "sliding_window_non_causal",
        "input_embedding_scale",
        "output_multiplier",
        "final_logit_softcapping",
        "draft_vocab_size",
        "tie_word_embeddings",
    )
)
ONLY = {"speculators_model_type": ("dflash",), "use_aux_hidden_state": (True,)}


@dataclass(frozen=True, slots=True)
class Level:
    """One layer of the stack. causal: a block's tokens don't see those after them; window: how many positions each
    sees, 0 is all."""

    layer: DecoderLayer
    norm: Norm
    causal: bool
    window: int


class BlockHead:
    """The stack, between the target's own embedding and output head. Load with `BlockHead.load`.

    captures: `target_layer_ids`. block_size: tokens of a block, the known one at its beginning included. mask: the id
    of the others.

    Tensors: fc.weight [H, C·H]; hidden_norm.weight, norm.weight; layers.i.* as in Qwen3. config.json: Qwen3's, with
    block_size and
    dflash_config: mask_token_id, target_layer_ids, which count outputs of layers (as many as there are layers, spread
    evenly, where they are not given; `aux_hidden_state_layer_ids` of the speculators library count inputs).
    embed_tokens.weight, lm_head.weight and d2t of the file are used where it has them, see drafting/ends.py. Of windows
    see `view`.

    `output_multiplier` and `final_logit_softcapping` are applied; `input_embedding_scale` too. DFlash2's convolutions
    and candidate selector are not known here, and refused by the names of their tensors.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        folder, width = checkpoint.folder, runner.hidden_size
        if config.hidden_size != width:
            raise ModelLoadError(f"{folder}: hidden_size must be the target's, {width}, got {config.hidden_size}")
        own = own_embedding(checkpoint, width, runner)
        self.embed_rows, self.head = embedding(own, runner), OutputHead(checkpoint, width, runner, own)
        refuse_unknown(checkpoint, KEYS, (SECTION, "transformer_layer_config"), ONLY)
        self.captures = captured_layers(checkpoint, runner.num_layers, config.num_hidden_layers)
        self.block_size = checkpoint.number("block_size", SECTION, 2, MAX_BLOCK)
        self.mask = checkpoint.number("mask_token_id", SECTION, 0, runner.vocab_size - 1)
        self.fc = packed(checkpoint, len(self.captures) * width, ("fc", width))
        self.feature_norm = Norm(checkpoint.take("hidden_norm.weight", width), config.rms_norm_eps)
        self.levels = [level(checkpoint, config, i, self.block_size) for i in range(config.num_hidden_layers)]
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
        rows = self.embed_rows(token_ids)
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        """The last layer's output [n, H] → [n, V]."""
        logits = self.head(self.norm(stream))
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def level(checkpoint: Checkpoint, config: Any, index: int, block_size: int) -> Level:
    """DecoderLayer `index` of the stack."""
    prefix = f"layers.{index}."
    causal, window = view(checkpoint, config, index, block_size)
    norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", config.hidden_size), config.rms_norm_eps)
    return Level(DecoderLayer(checkpoint, prefix, config, config.hidden_size), norm, causal, window)


def view(checkpoint: Checkpoint, config: Any, index: int, block_size: int) -> tuple[bool, int]:
    """Whether a layer's tokens see those after them in the block, and how many positions each sees; 0 is all.

    A layer has a window where `layer_types` says sliding_attention, or, where it says so of none, `use_swa`: of
    `swa_window_size`, or else `sliding_window`. Layers with a window are causal and the others are not, unless
    `is_causal`, `causal` or `sliding_window_non_causal` says otherwise (so vLLM reads published files). A causal window
    counts the block too. In one that is not causal (speculators) all tokens of a block see the whole block and the same
    positions before it, as many as the window has.
    """
    types = checkpoint.value("layer_types", "transformer_layer_config") or []
    if len(types) not in (0, config.num_hidden_layers) or set(types) - {"full_attention", "sliding_attention"}:
        raise ModelLoadError(
            f"{checkpoint.folder}: layer_types must be full_attention or sliding_attention for each of "
            f"{config.num_hidden_layers} layers, got {types!r}"
        )
    sliding = (
        types[index] == "sliding_attention" if "sliding_attention" in types else checkpoint.flag("use_swa", SECTION)
    )
    causal = next(
        (said for name in ("is_causal", "causal") if (said := checkpoint.value(name, SECTION)) is not None), sliding
    )
    if sliding and checkpoint.flag("sliding_window_non_causal", SECTION):
        causal = False
    if not sliding:
        return bool(causal), 0
    name = "sliding_window" if checkpoint.value("swa_window_size", SECTION) is None else "swa_window_size"
    part = SECTION if name == "swa_window_size" else "transformer_layer_config"
    window = checkpoint.number(name, part, 1, 2**31 - 1)
    return bool(causal), window if causal else window + block_size


def captured_layers(checkpoint: Checkpoint, num_layers: int, drafting: int) -> tuple[int, ...]:
    """The target's layers whose outputs the head takes. drafting: layers that the head itself has."""
    trained = checkpoint.config.get("num_target_layers", num_layers)
    if trained != num_layers:
        raise ModelLoadError(
            f"{checkpoint.folder}: num_target_layers must be the target's, {num_layers}, got {trained}"
        )
    layers = checkpoint.value("target_layer_ids", SECTION)
    inputs = checkpoint.config.get("aux_hidden_state_layer_ids")
    if layers is None and isinstance(inputs, list) and all(isinstance(i, int) for i in inputs):
        layers = [i - 1 for i in inputs]
    elif layers is None and inputs is None:
        layers = spread(num_layers, drafting)
    if not (
        isinstance(layers, list)
        and layers
        and all(isinstance(i, int) and 0 <= i < num_layers for i in layers)
        and len(set(layers)) == len(layers)
    ):
        raise ModelLoadError(
            f"{checkpoint.folder}: target_layer_ids must be a list of different integers in [0, {num_layers - 1}], "
            f"got {layers!r}"
        )
    return tuple(layers)


def spread(num_layers: int, drafting: int) -> list[int]:
    """What the published code takes where a file does not say: from the second layer to the fourth from the end."""
    if drafting == 1:
        return [num_layers // 2]
    return [round(1 + i * (num_layers - 4) / (drafting - 1)) for i in range(drafting)]
