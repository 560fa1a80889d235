"""Drafts from the assistant that is published beside a Gemma 4 model. Its layers have queries alone: they attend to the
keys and values of the target, those of the last layer of the same kind (full or sliding).

A step takes the target's own embedding of the last token and the target's state at the position before. Its output,
projected back, is the state of the next step. All steps of a draft are at the position of the last token, and see the
positions that the target has computed. So the assistant keeps nothing from step to step, and needs no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_object
from tailrace.base.mtp import is_assistant_type
from tailrace.drafting.base import DraftRequest, TargetStates
from tailrace.drafting.chain import StateChain
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.errors import ModelLoadError, TailraceError, take_first_line
from tailrace.runners.attention import ATTRIBUTE, AttentionLayer
from tailrace.runners.base import Batch
from tailrace.runners.flat_batch import block_table
from tailrace.runners.inputs import move_batch
from tailrace.runners.load_transformers import LOAD_FLAGS, hide_reports, refuse_missing
from tailrace.runners.transformers import TransformersRunner

NAME = "tailrace_borrowed"  # the name under which the attention function is registered
SOURCE = "tailrace_source"  # where an attention module carries its BorrowedLayer
LEAST = (5, 24)  # of transformers: 5.23 can't build a model all of whose layers share keys
KINDS = ("full_attention", "sliding_attention")


@dataclass(slots=True)
class BorrowedLayer:
    """Where an attention module finds keys and values. layer: of the target. window: 0, or how many of the last
    positions are seen. batch: the pass that runs."""

    target: TransformersRunner
    layer: AttentionLayer
    window: int
    batch: Batch | None = None


def attend_source(
    module: nn.Module, query: torch.Tensor, key: Any, value: Any, mask: Any = None, **options: Any
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: query [N, Hq, 1, D] → [N, 1, Hq, D]. Keys, values and the mask
    are those of the module's BorrowedLayer."""
    source: BorrowedLayer = getattr(module, SOURCE)
    batch, layer = source.batch, source.layer
    assert batch is not None, "attention outside of a step"
    out = kernels.paged_attention(
        query[:, :, 0],
        source.target.paged.layers.caches[layer.source],
        batch.block_tables,
        batch.query_start,
        batch.kv_len,
        scale=float(options["scaling"]),
        window=source.window,
        softcap=layer.softcap,
    )
    return out[:, None], None


class Assistant:
    """The assistant of a published folder (`gemma4_assistant`), for this target.

    Raises:
        ModelLoadError: the folder has no assistant, or it does not fit the target; the message names the reason.
    """

    def __init__(self, folder: Path, target: TransformersRunner) -> None:
        self.target, self.captures = target, (target.num_layers,)
        model = self.model = load_assistant(folder, target)
        width, vocab = model.config.backbone_hidden_size, model.lm_head.out_features
        if (width, vocab) != (target.hidden_size, target.vocab_size):
            raise ModelLoadError(
                f"{folder}: backbone_hidden_size and vocab_size must be the target's, {target.hidden_size} and "
                f"{target.vocab_size}, got {width} and {vocab}"
            )
        found, self.sources = find_sources(target), list[BorrowedLayer]()
        for layer in model.model.layers:
            attention = layer.self_attn
            source = make_source(folder, attention, model.config.get_text_config(), found, target)
            setattr(attention, SOURCE, source)
            self.sources.append(source)

    def step(self, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next states [n, H] and logits [n, V]; −inf for tokens that the assistant does not consider."""
        moved = move_batch(batch, self.target.device)
        rows = self.target.paged.model.get_input_embeddings()(moved.token_ids)
        entering = self.model.pre_projection(torch.cat([rows, states], -1))
        for source in self.sources:
            source.batch = moved
        out = self.model.model(
            inputs_embeds=entering[:, None],
            position_ids=moved.positions[:, None],
            attention_mask=dict.fromkeys(KINDS),  # the function has its own
            shared_kv_states=dict.fromkeys(KINDS, (None, None)),
            use_cache=False,
        ).last_hidden_state[:, 0]
        return self.model.post_projection(out), self.compute_logits(out)

    def compute_logits(self, out: torch.Tensor) -> torch.Tensor:
        """Turn the last layer's normed output [n, H] into logits: of all tokens, or of those near the likeliest
        centroids."""
        ordered = self.model.masked_embedding
        if ordered is None:
            return self.model.lm_head(out)
        nearest = ordered.centroids(out).topk(ordered.centroid_intermediate_top_k, -1).indices
        ids = ordered.token_ordering.long().view(ordered.num_centroids, -1)[nearest].flatten(1)
        found = (self.model.lm_head.weight[ids] @ out[:, :, None])[:, :, 0]
        return out.new_full((len(out), self.target.vocab_size), float("-inf")).scatter_(1, ids, found)


class AssistantDrafter(StateChain):
    """Drafter with an assistant. A sequence gets no drafts if its last computed position was not observed.

    Args:
        block_size: of the target's cache.
    """

    moves = 0

    def __init__(self, assistant: Assistant, draft_sampler: DraftSampler, block_size: int) -> None:
        super().__init__(draft_sampler, block_size)
        self.assistant, self.captures = assistant, assistant.captures

    def plan(self, requests: Sequence[DraftRequest]) -> tuple[Sequence[DraftRequest], list[int], torch.Tensor]:
        held = [request.computed if self.has_state(request) else 0 for request in requests]
        return requests, held, block_table([request.blocks for request in requests])

    def step(self, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.assistant.step(batch, states)

    def observe(self, seen: TargetStates) -> None:
        for slot, first, count, row in zip(seen.slots, seen.first, seen.count, seen.row, strict=True):
            if count:
                self.states[slot] = (first + count - 1, seen.hidden[row + count - 1][None].clone())


def is_assistant(folder: Path) -> bool:
    """Return whether a folder holds an assistant."""
    return is_assistant_type(read_object(folder / "config.json"))


def load_assistant(folder: Path, target: TransformersRunner) -> Any:
    """Return the folder's model, in evaluation mode, with our attention function.

    Raises:
        ModelLoadError: transformers can't load it, or its weights are not all there.
    """
    with require_extra("serve"):
        import transformers
        from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    AttentionInterface.register(NAME, attend_source)
    try:
        config = AutoConfig.from_pretrained(folder)
        if getattr(config, "quantization_config", None) is not None:
            raise ModelLoadError(f"{folder}: a quantized assistant is not read")
        with hide_reports():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=target.dtype, attn_implementation=NAME, **LOAD_FLAGS
            )
    except TailraceError:
        raise
    except Exception as error:  # whatever a model's code raises
        reason = take_first_line(error)
        if tuple(map(int, transformers.__version__.split(".")[:2])) < LEAST:
            reason = f"transformers 5.24 or later is needed, {transformers.__version__} is installed ({reason})"
        raise ModelLoadError(f"{folder}: the assistant can't be loaded: {reason}") from error
    model, report = loaded
    refuse_missing(folder, sorted(report["missing_keys"]))
    return model.to(target.device).eval()


def find_sources(target: TransformersRunner) -> dict[str, AttentionLayer]:
    """Return the last layer of each kind that has keys and values of its own."""
    found = {}
    for module in target.paged.model.get_decoder().modules():
        layer = getattr(module, ATTRIBUTE, None)
        if layer is not None and layer.source == layer.index:
            found[getattr(module, "layer_type", "")] = layer
    return found


def make_source(
    folder: Path, attention: Any, config: Any, found: dict[str, AttentionLayer], target: TransformersRunner
) -> BorrowedLayer:
    """Return the BorrowedLayer of an attention module.

    Raises:
        ModelLoadError: the target has no such layer, or its heads differ.
    """
    kind, heads = attention.layer_type, config.num_attention_heads
    layer = found.get(kind)
    if layer is None:
        raise ModelLoadError(f"{folder}: the assistant reads keys of {kind}, and the target has no such layers")
    if layer.head_dim != attention.head_dim or heads % layer.heads:
        raise ModelLoadError(
            f"{folder}: the assistant has {heads} heads of {attention.head_dim} for {kind}, and the target's keys have "
            f"{layer.heads} of {layer.head_dim}"
        )
    return BorrowedLayer(target, layer, config.sliding_window + 1 if kind == "sliding_attention" else 0)
