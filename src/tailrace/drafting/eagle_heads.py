"""EAGLE's heads from their published checkpoints: EAGLE-1 and -2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv
2503.01840). This module has their arithmetic; it knows no sequences.

Symbols: n rows, H the head's hidden size, Ht the target's, C captured layers, V the target's vocabulary, Vd the head's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.ends import OutputHead, make_embedding, own_embedding
from tailrace.drafting.keys import refuse_unknown
from tailrace.drafting.layer import DecoderLayer, Norm, Rotary, pack_projections, parse_config
from tailrace.errors import ModelLoadError
from tailrace.runners.base import Batch, LayeredRunner

SECTION = "eagle_config"
EAGLE3_KEYS = frozenset(
    (
        "draft_vocab_size",
        "target_hidden_size",
        "eagle_aux_hidden_state_layer_ids",
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "use_aux_hidden_state",
        "tie_word_embeddings",
        "num_aux_hidden_states",
        "sliding_window",
    )
)
# A window applies to layers that request one. Our layer does not.
EAGLE_ONLY = {
    "speculators_model_type": ("eagle3",),
    "use_sliding_window": (False,),
    "layer_types": (["full_attention"],),
    "is_causal": (True,),
}


class EagleHead(ABC):
    """What all versions share, see drafting/chain.py. layer: the decoder layer, which knows no caches."""

    captures: tuple[int, ...]
    layer: DecoderLayer
    rotary: Rotary

    @abstractmethod
    def state(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """Turn the target's states [n, C·Ht] into the layer's input: it replaces the layer's output at the position
        before."""

    @abstractmethod
    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn int64 [n] token ids and states into the input of the layer's projections [n, width], and its residual
        [n, H]."""

    @abstractmethod
    def logits(self, state: torch.Tensor, /) -> torch.Tensor:
        """Turn the layer's output into logits [n, V]; −inf for tokens that the head does not know."""

    @abstractmethod
    def following(self, state: torch.Tensor, /) -> torch.Tensor:
        """Turn the layer's output into the state for the next position."""

    @property
    def position_bytes(self) -> int:
        return self.layer.position_bytes

    def make_cache(self, num_blocks: int, block_size: int) -> kernels.KVCache:
        return self.layer.make_cache(num_blocks, block_size)

    def keep(self, cache: kernels.KVCache, batch: Batch, states: torch.Tensor) -> None:
        entering, _ = self.enter(batch.token_ids, states)
        kernels.store_kv(cache, *self.layer.keys_values(entering, self.rotary(batch.positions)), batch.slot_mapping)

    def step(self, cache: kernels.KVCache, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entering, residual = self.enter(batch.token_ids, states)
        rope = self.rotary(batch.positions)
        kernels.store_kv(cache, *self.layer.keys_values(entering, rope), batch.slot_mapping)
        mixed = kernels.paged_attention(
            self.layer.compute_query(entering, rope),
            cache,
            batch.block_tables,
            batch.query_start,
            batch.kv_len,
            scale=self.layer.scale,
        )
        out = self.layer.compute_output(residual, mixed)
        return self.following(out), self.logits(out)


class Eagle1(EagleHead):
    """The head of EAGLE-1 and -2, whose checkpoints are the same. One projection takes embedding and state; then comes
    a layer without its first norm.

    Tensors: fc.weight [H, 2H], over the embedding, then the state; fc.bias in some; layers.0.*; embed_tokens.weight in
    some, else the target's. The state is the input of the target's output head, which is also the head's own.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        width = runner.hidden_size
        if config.hidden_size != width:
            raise ModelLoadError(
                f"{checkpoint.folder}: hidden_size must be the target's, {width}, got {config.hidden_size}"
            )
        self.captures = (runner.num_layers,)
        refuse_unknown(
            checkpoint, frozenset(("tie_word_embeddings", "sliding_window")), ("transformer_layer_config",), EAGLE_ONLY
        )
        refuse_window(checkpoint, config)
        self.embed = make_embedding(own_embedding(checkpoint, width, runner), runner)
        self.fc = pack_projections(checkpoint, 2 * width, ("fc", width))
        self.layer = DecoderLayer(checkpoint, "layers.0.", config, width)
        self.rotary = Rotary(config, runner.dtype, checkpoint.device)
        self.head = runner.head
        checkpoint.tensors.pop("lm_head.weight", None)  # in some files, a copy of the target's

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fused = kernels.linear(torch.cat([self.embed(token_ids), state], -1), self.fc)
        return fused, fused

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self.head(state)

    def following(self, state: torch.Tensor) -> torch.Tensor:
        return state


class Eagle3(EagleHead):
    """The head of EAGLE-3. It fuses the states of several layers of the target. The projections take embedding and
    state, each normed.

    Tensors:

    - fc.weight [H, C·Ht].
    - midlayer.* (layers.0.* in files of the speculators library) with hidden_norm, input_layernorm and projections 2H
      wide.
    - norm.weight; lm_head.weight and d2t, see drafting/ends.py.
    - embed_tokens.weight in some files, else the target's.
    - t2d has the same content as d2t and is not read.

    Keys, at the top of config.json or in its eagle_config:

    - `norm_before_residual`: the residual is the normed state.
    - `fc_norm`: each of the target's states is normed before they are fused (fc_norm.i.weight [Ht]).
    - `norm_before_fc`: all of them are normed together (input_norm.weight [C·Ht]).
    - `use_aux_hidden_state` false: no states are fused. The state is the input of the target's output head.
    - `norm_output` true: the next position gets the layer's normed output (EAGLE 3.1, as speculators and vLLM read it).
      There, false is the default. In a file of SpecForge, false means that the output head gets the layer's plain
      output.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint else "layers.0."
        refuse_unknown(checkpoint, EAGLE3_KEYS, ("eagle_config", "transformer_layer_config"), EAGLE_ONLY)
        refuse_window(checkpoint, config)
        own = own_embedding(checkpoint, width, runner)
        self.embed = make_embedding(own, runner)
        self._load_fusion(checkpoint, width, eps, runner)
        self.layer = DecoderLayer(checkpoint, prefix, config, 2 * width)
        self.embed_norm = Norm(checkpoint.take(f"{prefix}input_layernorm.weight", width), eps)
        self.state_norm = Norm(checkpoint.take(f"{prefix}hidden_norm.weight", width), eps)
        self.norm = Norm(checkpoint.take("norm.weight", width), eps)
        self.rotary = Rotary(config, runner.dtype, checkpoint.device)
        self.normed_residual = checkpoint.flag("norm_before_residual", SECTION)
        self.normed_output = checkpoint.flag("norm_output", SECTION)
        plain = checkpoint.value("norm_output", SECTION) is False and "speculators_model_type" not in checkpoint.config
        self.normed_logits = not plain
        self.head = OutputHead(checkpoint, width, runner, own)

    def _load_fusion(self, checkpoint: Checkpoint, width: int, eps: float, runner: LayeredRunner) -> None:
        """Load the tensors that fuse the target's states into one state."""
        self.fc, self.fused_norms = None, []
        each = runner.hidden_size
        check_config_value(checkpoint, "target_hidden_size", each)
        if not checkpoint.flag("use_aux_hidden_state", SECTION, default=True):
            if width != each:
                raise ModelLoadError(f"{checkpoint.folder}: hidden_size must be the target's, {each}, got {width}")
            self.captures = (runner.num_layers,)
            return
        self.captures = fused_layers(checkpoint, runner.num_layers)
        count = len(self.captures)
        check_config_value(checkpoint, "num_aux_hidden_states", count)
        self.fc = pack_projections(checkpoint, count * each, ("fc", width))
        together, apart = checkpoint.flag("norm_before_fc", SECTION), checkpoint.flag("fc_norm", SECTION)
        if together and apart:
            raise ModelLoadError(f"{checkpoint.folder}: norm_before_fc and fc_norm can't both be true")
        if together:
            self.fused_norms = [Norm(checkpoint.take("input_norm.weight", count * each), eps)]
        elif apart:
            self.fused_norms = [Norm(checkpoint.take(f"fc_norm.{i}.weight", each), eps) for i in range(count)]

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.fused_norms:
            parts = hidden.chunk(len(self.fused_norms), -1)
            hidden = torch.cat(
                [norm(part.contiguous()) for norm, part in zip(self.fused_norms, parts, strict=True)], -1
            )
        return hidden if self.fc is None else kernels.linear(hidden, self.fc)

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.state_norm(state)
        entering = torch.cat([self.embed_norm(self.embed(token_ids)), normed], -1)
        return entering, normed if self.normed_residual else state

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(state) if self.normed_logits else state)

    def following(self, state: torch.Tensor) -> torch.Tensor:
        return self.norm(state) if self.normed_output else state


def refuse_window(checkpoint: Checkpoint, config: Any) -> None:
    """Raise ModelLoadError for a layer with a window, which this head does not support. Some families have a window
    wherever a size is given."""
    size = getattr(config, "sliding_window", None)
    if size and not hasattr(config, "use_sliding_window"):
        raise ModelLoadError(
            f"{checkpoint.folder}: config.json: sliding_window must be null for model_type {config.model_type}, "
            f"got {size}"
        )


def check_config_value(checkpoint: Checkpoint, key: str, wanted: int) -> None:
    """Raise ModelLoadError if the configuration has another number."""
    said = checkpoint.value(key, SECTION)
    if said is not None and said != wanted:
        raise ModelLoadError(f"{checkpoint.folder}: config.json: {key} must be {wanted} here, got {str(said)[:100]}")


def load_head(folder: Path, runner: LayeredRunner) -> EagleHead:
    """Load the head of a published folder for this target. A norm of the state marks EAGLE-3.

    Raises:
        ModelLoadError: a tensor or a number of config.json is missing or does not fit the target; the message names it.
    """
    checkpoint = Checkpoint(folder, runner.dtype, runner.device)
    config = parse_config(checkpoint)
    if config.num_hidden_layers != 1:
        raise ModelLoadError(f"{folder}: num_hidden_layers must be 1, got {config.num_hidden_layers}")
    third = any(f"{prefix}.hidden_norm.weight" in checkpoint for prefix in ("midlayer", "layers.0"))
    head = (Eagle3 if third else Eagle1)(checkpoint, config, runner)
    checkpoint.finish()
    return head


def fused_layers(checkpoint: Checkpoint, num_layers: int) -> tuple[int, ...]:
    """Return the target's layers whose outputs an EAGLE-3 head takes.

    Without a setting in config.json they are the inputs of layers 2, L / 2 and L − 3, as in the published
    implementation. Two settings exist:

    - `eagle_config.eagle_aux_hidden_state_layer_ids` counts layers' outputs.
    - A top-level `eagle_aux_hidden_state_layer_ids` counts inputs.

    The files do not explain this; servers read them in this way.
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
