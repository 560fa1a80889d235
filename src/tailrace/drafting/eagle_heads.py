"""EAGLE's heads from their published checkpoints: EAGLE-1 and -2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv
2503.01840). What a head computes with what it is given; knows neither sequences nor caches.

Symbols: n rows, H the head's hidden size, Ht the target's, C captured layers, V the target's vocabulary, Vd the head's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from tailrace import kernels
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.ends import OutputHead, embedding, own_embedding
from tailrace.drafting.keys import refuse_unknown
from tailrace.drafting.layer import DecoderLayer, Norm, Rotary, configuration, packed
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner

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
# a window is honoured where layers say so, and ours has none
EAGLE_ONLY = {
    "speculators_model_type": ("eagle3",),
    "use_sliding_window": (False,),
    "layer_types": (["full_attention"],),
    "is_causal": (True,),
}


class EagleHead(Protocol):
    """What the versions have in common. States are [n, H]."""

    captures: tuple[int, ...]
    layer: DecoderLayer
    rotary: Rotary

    def state(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """What the target has computed, [n, C·Ht] → what stands in for the layer's own output of the position
        before."""
        ...

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [n] and states → what the layer's projections take, [n, width], and its residual [n, H]."""
        ...

    def logits(self, state: torch.Tensor, /) -> torch.Tensor:
        """The layer's output → [n, V]; −inf for tokens that the head does not know."""
        ...

    def following(self, state: torch.Tensor, /) -> torch.Tensor:
        """The layer's output → the state that the next position goes on from."""
        ...


class Eagle1:
    """EAGLE-1 and -2, whose checkpoints are the same: embedding and state in one projection, then a layer without its
    first norm.

    Tensors: fc.weight [H, 2H], over the embedding, then the state; fc.bias in some; layers.0.*; embed_tokens.weight in
    some, else the target's. The state is what enters the target's output head, and that is the head's own, too.
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
        self.embed = embedding(own_embedding(checkpoint, width, runner), runner)
        self.fc = packed(checkpoint, 2 * width, ("fc", width))
        self.layer = DecoderLayer(checkpoint, "layers.0.", config, width)
        self.rotary = Rotary(config, runner.dtype, checkpoint.device)
        self.logits = runner.head
        checkpoint.tensors.pop("lm_head.weight", None)  # a copy of the target's, in some

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def enter(self, token_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fused = kernels.linear(torch.cat([self.embed(token_ids), state], -1), self.fc)
        return fused, fused

    def following(self, state: torch.Tensor) -> torch.Tensor:
        return state


class Eagle3:
    """EAGLE-3: the states of several layers of the target, fused; the projections take embedding and state, each
    normed.

    Tensors: fc.weight [H, C·Ht]; midlayer.* (layers.0.* where the speculators library wrote it) with hidden_norm,
    input_layernorm and projections 2H wide; norm.weight; lm_head.weight and d2t, see drafting/ends.py;
    embed_tokens.weight in some, else the target's. t2d says the same as d2t and is not read.

    Keys, at the top of config.json or in its eagle_config: `norm_before_residual`: the residual is the normed state.
    `fc_norm`: each of the target's states is normed before they are fused (fc_norm.i.weight [Ht]); `norm_before_fc`:
    all of them together (input_norm.weight [C·Ht]). `use_aux_hidden_state` false: no states are fused, the one that
    enters the target's output head is taken as it is. `norm_output` true: the next position gets the layer's normed
    output (EAGLE 3.1, as speculators and vLLM read it). False is the default there; where SpecForge wrote it, it means
    that the output head gets the output as it is.
    """

    def __init__(self, checkpoint: Checkpoint, config: Any, runner: LayeredRunner) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint else "layers.0."
        refuse_unknown(checkpoint, EAGLE3_KEYS, ("eagle_config", "transformer_layer_config"), EAGLE_ONLY)
        refuse_window(checkpoint, config)
        own = own_embedding(checkpoint, width, runner)
        self.embed = embedding(own, runner)
        self._fusion(checkpoint, width, eps, runner)
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

    def _fusion(self, checkpoint: Checkpoint, width: int, eps: float, runner: LayeredRunner) -> None:
        """What makes a state of those that the target has computed."""
        self.fc, self.fused_norms = None, []
        each = runner.hidden_size
        agree(checkpoint, "target_hidden_size", each)
        if not checkpoint.flag("use_aux_hidden_state", SECTION, default=True):
            if width != each:
                raise ModelLoadError(f"{checkpoint.folder}: hidden_size must be the target's, {each}, got {width}")
            self.captures = (runner.num_layers,)
            return
        self.captures = fused_layers(checkpoint, runner.num_layers)
        count = len(self.captures)
        agree(checkpoint, "num_aux_hidden_states", count)
        self.fc = packed(checkpoint, count * each, ("fc", width))
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
    """Raise ModelLoadError for a layer with a window: there is none here. Some families have one wherever a size is
    given."""
    size = getattr(config, "sliding_window", None)
    if size and not hasattr(config, "use_sliding_window"):
        raise ModelLoadError(
            f"{checkpoint.folder}: config.json: sliding_window must be null for model_type {config.model_type}, "
            f"got {size}"
        )


def agree(checkpoint: Checkpoint, key: str, wanted: int) -> None:
    """Raise ModelLoadError if the configuration says another number."""
    said = checkpoint.value(key, SECTION)
    if said is not None and said != wanted:
        raise ModelLoadError(f"{checkpoint.folder}: config.json: {key} must be {wanted} here, got {str(said)[:100]}")


def load_head(folder: Path, runner: LayeredRunner) -> EagleHead:
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
    """The target's layers whose outputs an EAGLE-3 head takes: what feeds layers 2, L / 2 and L − 3 (so the published
    implementation), or what config.json pins.

    Of its two ways to pin them we take `eagle_config.eagle_aux_hidden_state_layer_ids` to count layers' outputs, and a
    top-level `eagle_aux_hidden_state_layer_ids` to count inputs, as the servers do that read them; the files themselves
    don't say.
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
