"""A block-parallel drafter from its published checkpoint: DFlash (arXiv 2602.06036), DFlash2 or DSpark.

It is a small stack of decoder layers. One pass fills in all masks of a block, given the target's states of everything
before it. DFlash2 has convolutions along the block (drafting/block_convolution.py). DFlash2 and DSpark correct the
logits of each place by the token before it (drafting/block_correction.py). This module knows neither sequences nor
caches.

Symbols: n rows, H hidden size (the target's), C captured layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.drafting import block_correction
from tailrace.drafting.block_convolution import BlockConvolution, read_sizes
from tailrace.drafting.block_correction import is_dspark, load_correction
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
        "sample_from_anchor",
        "conv_kernel_size",
        "conv_group_size",
    )
)
ONLY = {
    "speculators_model_type": ("dflash", "dspark"),
    "projector_type": ("dflash", "dspark"),
    "use_aux_hidden_state": (True,),
}


@dataclass(frozen=True, slots=True)
class Level:
    """One layer of the stack. causal: a block's tokens don't see those after them. window: how many positions each
    token sees; 0: all. around_attention, around_mlp: DFlash2's convolutions, or None."""

    layer: DecoderLayer
    norm: Norm
    causal: bool
    window: int
    around_attention: BlockConvolution | None = None
    around_mlp: BlockConvolution | None = None

    def prepare(self, stream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the input of attention's projections, [n, H], and what `finish` needs."""
        x = self.norm(stream)
        return (x, None) if self.around_attention is None else self.around_attention.prepare(x)

    def finish(self, stream: torch.Tensor, mixed: torch.Tensor, computed: torch.Tensor | None) -> torch.Tensor:
        """Return the layer's output [n, H]; see `DecoderLayer.compute_output`."""
        if self.around_attention is None or self.around_mlp is None or computed is None:
            return self.layer.compute_output(stream, mixed)
        added = self.around_attention.finish(self.layer.project_mixed(mixed), computed)
        stream, normed = self.layer.add_attention(stream, added)
        normed, computed = self.around_mlp.prepare(normed)
        return stream + self.around_mlp.finish(self.layer.feed_forward(normed), computed)


class BlockHead:
    """The stack, between the target's own embedding and output head. Load it with `BlockHead.load`.

    captures: `target_layer_ids`. block_size: tokens of a block, including the known one at its beginning. mask: the id
    of the other tokens. first: the place whose output is the first draft. It is 1, or 0 with `sample_from_anchor`,
    DSpark's default: there a place predicts the token after its own. correction, confidence: see
    drafting/block_correction.py, or None.

    Tensors: fc.weight [H, C·H]; hidden_norm.weight, norm.weight; layers.i.* as in Qwen3. embed_tokens.weight,
    lm_head.weight and d2t are used if the file has them, see drafting/ends.py.

    config.json: Qwen3's, with block_size and dflash_config, which has mask_token_id and target_layer_ids. The latter
    count outputs of layers. Without them, as many as the stack has layers are spread evenly.
    `aux_hidden_state_layer_ids` of the speculators library count inputs. `view` describes windows. `output_multiplier`,
    `final_logit_softcapping` and `input_embedding_scale` are applied. What DSpark adds is at the top level, in
    dflash_config or in dspark_config.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        folder, width = checkpoint.folder, runner.hidden_size
        merge_sections(checkpoint.config)
        if config.hidden_size != width:
            raise ModelLoadError(f"{folder}: hidden_size must be the target's, {width}, got {config.hidden_size}")
        own = own_embedding(checkpoint, width, runner)
        self.embed_rows, self.head = make_embedding(own, runner), OutputHead(checkpoint, width, runner, own)
        only = {**ONLY, "target_hidden_size": (width,)}
        refuse_unknown(checkpoint, KEYS | block_correction.KEYS, (SECTION, "transformer_layer_config"), only)
        self.captures = captured_layers(checkpoint, runner.num_layers, config.num_hidden_layers)
        self.first = 0 if checkpoint.flag("sample_from_anchor", SECTION, is_dspark(checkpoint, SECTION)) else 1
        self.block_size = checkpoint.number("block_size", SECTION, 1 + self.first, MAX_BLOCK)
        self.mask = checkpoint.number("mask_token_id", SECTION, 0, runner.vocab_size - 1)
        self.fc = pack_projections(checkpoint, len(self.captures) * width, ("fc", width))
        self.feature_norm = Norm(checkpoint.take("hidden_norm.weight", width), config.rms_norm_eps)
        self.levels = [load_level(checkpoint, config, i, self.block_size) for i in range(config.num_hidden_layers)]
        self.norm = Norm(checkpoint.take("norm.weight", width), config.rms_norm_eps)
        self.rotary = Rotary(config, runner.dtype, runner.device)
        scales = (checkpoint.value(name, SECTION) for name in ("input_embedding_scale", "output_multiplier"))
        self.embedding_scale, self.multiplier = (1.0 if scale is None else float(scale) for scale in scales)
        self.softcap = float(checkpoint.value("final_logit_softcapping", SECTION) or 0.0)
        self.correction, self.confidence = load_correction(checkpoint, SECTION, runner, self.head.token_ids)
        if self.first and checkpoint.value("markov_head_type", SECTION) == "rnn":
            raise ModelLoadError(f"{folder}: markov_head_type rnn needs sample_from_anchor true, got false")

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

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Turn the normed output of the last layer, [n, H], into logits [n, V]."""
        logits = self.head(normed)
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def merge_sections(config: dict[str, Any]) -> None:
    """Move the settings in dspark_config to dflash_config. SGLang reads both."""
    if isinstance(more := config.pop("dspark_config", None), dict):
        section = config.get(SECTION)
        config[SECTION] = {**(section if isinstance(section, dict) else {}), **more}


def load_level(checkpoint: Checkpoint, config: Any, index: int, block_size: int) -> Level:
    """Load decoder layer `index` of the stack."""
    prefix = f"layers.{index}."
    causal, window = read_visibility(checkpoint, config, index, block_size)
    norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", config.hidden_size), config.rms_norm_eps)
    layer = DecoderLayer(checkpoint, prefix, config, config.hidden_size)
    if (sizes := read_sizes(checkpoint, SECTION, config.hidden_size)) is None:
        return Level(layer, norm, causal, window)
    around = (
        BlockConvolution(checkpoint, f"{prefix}{part}_conv.", sizes, config.hidden_size, block_size)
        for part in ("attention", "mlp")
    )
    return Level(layer, norm, causal, window, *around)


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
