"""A block-parallel drafter from its published checkpoint (DFlash, arXiv 2602.06036).

It is a small stack of decoder layers. One pass fills in all masks of a block, given the target's states of everything
before it. This module knows neither sequences nor caches.

Symbols: n rows, H hidden size (the target's), C captured layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.ends import OutputHead, make_embedding, own_embedding
from tailrace.drafting.keys import refuse_unknown
from tailrace.drafting.layer import DecoderLayer, Norm, Rotary, pack_projections, parse_config
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
    """One layer of the stack. causal: a block's tokens don't see those after them. window: how many positions each
    token sees; 0: all."""

    layer: DecoderLayer
    norm: Norm
    causal: bool
    window: int


class BlockHead:
    """The stack, between the target's own embedding and output head. Load it with `BlockHead.load`.

    captures: `target_layer_ids`. block_size: tokens of a block, including the known one at its beginning. mask: the id
    of the other tokens.

    Tensors: fc.weight [H, C·H]; hidden_norm.weight, norm.weight; layers.i.* as in Qwen3. embed_tokens.weight,
    lm_head.weight and d2t are used if the file has them, see drafting/ends.py.

    config.json: Qwen3's, with block_size and dflash_config, which has mask_token_id and target_layer_ids. The latter
    count outputs of layers. Without them, as many as the stack has layers are spread evenly.
    `aux_hidden_state_layer_ids` of the speculators library count inputs. `view` describes windows. `output_multiplier`,
    `final_logit_softcapping` and `input_embedding_scale` are applied.

    DFlash2's convolutions and candidate selector are not supported. They are refused by the names of their tensors.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        folder, width = checkpoint.folder, runner.hidden_size
        if config.hidden_size != width:
            raise ModelLoadError(f"{folder}: hidden_size must be the target's, {width}, got {config.hidden_size}")
        own = own_embedding(checkpoint, width, runner)
        self.embed_rows, self.head = make_embedding(own, runner), OutputHead(checkpoint, width, runner, own)
        refuse_unknown(checkpoint, KEYS, (SECTION, "transformer_layer_config"), ONLY)
        self.captures = captured_layers(checkpoint, runner.num_layers, config.num_hidden_layers)
        self.block_size = checkpoint.number("block_size", SECTION, 2, MAX_BLOCK)
        self.mask = checkpoint.number("mask_token_id", SECTION, 0, runner.vocab_size - 1)
        self.fc = pack_projections(checkpoint, len(self.captures) * width, ("fc", width))
        self.feature_norm = Norm(checkpoint.take("hidden_norm.weight", width), config.rms_norm_eps)
        self.levels = [load_level(checkpoint, config, i, self.block_size) for i in range(config.num_hidden_layers)]
        self.norm = Norm(checkpoint.take("norm.weight", width), config.rms_norm_eps)
        self.rotary = Rotary(config, runner.dtype, runner.device)
        scales = (checkpoint.value(name, SECTION) for name in ("input_embedding_scale", "output_multiplier"))
        self.embedding_scale, self.multiplier = (1.0 if scale is None else float(scale) for scale in scales)
        self.softcap = float(checkpoint.value("final_logit_softcapping", SECTION) or 0.0)

    @classmethod
    def load(cls, folder: Path, runner: LayeredRunner) -> BlockHead:
        """Load the head of a published folder for this target.

        Raises:
            ModelLoadError: a tensor or a number of config.json is missing or does not fit the target; the message names
                it.
        """
        checkpoint = Checkpoint(folder, runner.dtype, runner.device)
        head = cls(checkpoint, parse_config(checkpoint), runner)
        checkpoint.finish()
        return head

    @property
    def position_bytes(self) -> int:
        """Bytes of cache per position, over all layers."""
        return sum(level.layer.position_bytes for level in self.levels)

    def project_states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn the target's captured states [n, C·H] into the input of every layer's keys and values, [n, H]."""
        return self.feature_norm(kernels.linear(hidden, self.fc))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids, int64 [n] → [n, H]."""
        rows = self.embed_rows(token_ids)
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        """Turn the last layer's output [n, H] into logits [n, V]."""
        logits = self.head(self.norm(stream))
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def load_level(checkpoint: Checkpoint, config: Any, index: int, block_size: int) -> Level:
    """Load decoder layer `index` of the stack."""
    prefix = f"layers.{index}."
    causal, window = read_visibility(checkpoint, config, index, block_size)
    norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", config.hidden_size), config.rms_norm_eps)
    return Level(DecoderLayer(checkpoint, prefix, config, config.hidden_size), norm, causal, window)


def read_visibility(checkpoint: Checkpoint, config: Any, index: int, block_size: int) -> tuple[bool, int]:
    """Return whether a layer is causal within the block, and how many positions each token sees; 0: all.

    A layer has a window if `layer_types` says sliding_attention. If no layer's type does, `use_swa` decides. The
    window's size is `swa_window_size`, or else `sliding_window`. Layers with a window are causal and the others are
    not, unless `is_causal`, `causal` or `sliding_window_non_causal` says otherwise (vLLM reads published files in this
    way). A causal window counts the block too. In a window that is not causal (speculators), all tokens of a block see
    the whole block and the same positions before it, as many as the window's size.
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
    """Return the target's layers whose outputs the head takes. drafting: the number of layers of the head itself."""
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
        layers = spread_layers(num_layers, drafting)
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


def spread_layers(num_layers: int, drafting: int) -> list[int]:
    """Return the published code's default layers: from the second layer to the fourth from the end."""
    if drafting == 1:
        return [num_layers // 2]
    return [round(1 + i * (num_layers - 4) / (drafting - 1)) for i in range(drafting)]
