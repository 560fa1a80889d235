"""The MTP head that a model ships with: norms and a projection of the next token's embedding and the target's state,
then one decoder layer of the target's own class, a norm, and the target's output head.

The head is a model of one layer, of the target's class. Its embedding is the projection, and its output head is the
target's. So its attention, experts and rotary embedding are those of the target, on a paged cache of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tailrace import kernels
from tailrace.base.mtp import make_single
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.drafting.mtp_layouts import Layout, name_tensors, open_head
from tailrace.errors import ConfigError, ModelLoadError, TailraceError, take_first_line
from tailrace.runners.attention import NAME
from tailrace.runners.base import Batch, ModelRunner
from tailrace.runners.inputs import move_batch
from tailrace.runners.load_checks import explain_errors, report_nonfinite
from tailrace.runners.load_transformers import hide_reports, swap_modules
from tailrace.runners.lora import Adapters
from tailrace.runners.paged_model import PagedModel, attach_memory
from tailrace.runners.reproduction import check_reproduced
from tailrace.runners.rope import settle_long_rope
from tailrace.runners.transformers import TransformersRunner

HeadCache = tuple[list[kernels.KVCache], list[torch.Tensor]]  # keys and values, and an indexer's keys if it has one


class Fusion(nn.Module):
    """The embedding of the head's model: projects tokens and states into the layer's input.

    states: [T, H], of the pass that runs. None: a trial at load, in which embeddings stand for states.
    """

    def __init__(self, checkpoint: Checkpoint, layout: Layout, target: TransformersRunner, norm: Any) -> None:
        super().__init__()
        self.embed, self.layout = target.embed, layout
        self.embedding_norm = load_norm(checkpoint, layout.embedding_norm, norm)
        self.hidden_norm = load_norm(checkpoint, layout.hidden_norm, norm)
        width = target.hidden_size
        self.projection = nn.Linear(2 * width, width, bias=False, device="meta")
        weight = checkpoint.take(f"{layout.projection}.weight", width, 2 * width)
        self.projection.weight = nn.Parameter(weight, requires_grad=False)
        self.states: torch.Tensor | None = None
        self.positions: torch.Tensor | None = None

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self.embed(token_ids.flatten())
        if self.layout.masked and self.positions is not None:
            rows = rows.masked_fill((self.positions == 0)[:, None], 0.0)
        parts = [self.embedding_norm(rows), self.hidden_norm(rows if self.states is None else self.states)]
        return self.projection(torch.cat(parts[::-1] if self.layout.hidden_first else parts, -1))[None]


class OutputEnd(nn.Module):
    """The output head of the head's model: the target's. input: [1, L, H], of the last call."""

    def __init__(self, target: TransformersRunner) -> None:
        super().__init__()
        self.head, self.out_features = target.head, target.vocab_size
        self.input = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.input = x
        return self.head(x) if x.shape[-2] else x.new_empty((*x.shape[:-1], self.out_features))


class MtpHead:
    """The head, see drafting/chain.py. Load it with `MtpHead.load`. A state is the input of the target's output head;
    the state for a further draft is the input of the head's own."""

    def __init__(self, paged: PagedModel, fusion: Fusion, end: OutputEnd, layers: int) -> None:
        self.paged, self.fusion, self.end = paged, fusion, end
        self.captures = (layers,)

    @classmethod
    def load(cls, folder: Path, target: TransformersRunner) -> MtpHead:
        """Load the head that a folder holds for this target.

        Raises:
            ModelLoadError: there is no head, or it does not fit the target; the message names the reason.
        """
        checkpoint, layout = open_head(folder, target, target.paged.model.config.get_text_config())
        model = load_layer(checkpoint, layout, target)
        fusion = Fusion(checkpoint, layout, target, model.get_decoder().norm)
        end = OutputEnd(target)
        checkpoint.finish()
        model.set_input_embeddings(fusion)
        model.set_output_embeddings(end)
        return cls(attach_head(folder, model.to(target.device).eval(), target), fusion, end, target.num_layers)

    @property
    def position_bytes(self) -> int:
        return self.paged.block_bytes() // self.paged.block_size

    def make_cache(self, num_blocks: int, block_size: int) -> HeadCache:
        return self.paged.make_caches(num_blocks), self.paged.make_index_keys(num_blocks)

    def state(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def keep(self, cache: HeadCache, batch: Batch, states: torch.Tensor) -> None:
        self._run(cache, batch, states, batch.wanted[:0])

    def step(self, cache: HeadCache, batch: Batch, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._run(cache, batch, states, batch.wanted)
        return self.end.input[0], logits

    def _run(self, cache: HeadCache, batch: Batch, states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        moved = move_batch(replace(batch, wanted=wanted), self.paged.device)
        self.paged.layers.caches, self.paged.layers.index_keys = cache
        with self._given(states, moved.positions), self.paged.listing(batch):
            return self.paged.run(moved)

    @contextmanager
    def _given(self, states: torch.Tensor, positions: torch.Tensor) -> Iterator[None]:
        self.fusion.states, self.fusion.positions = states, positions
        try:
            yield
        finally:
            self.fusion.states = self.fusion.positions = None


def take_target(runner: ModelRunner) -> TransformersRunner:
    """Return the target of an MTP head.

    Raises:
        ConfigError: it is no model of transformers.
    """
    if not isinstance(runner, TransformersRunner):
        raise ConfigError("speculation.drafter: mtp needs a model with an MTP head; this one has no layers")
    return runner


def load_norm(checkpoint: Checkpoint, name: str, like: Any) -> Any:
    """Return a norm of the target's class with its own weights."""
    norm = copy.deepcopy(like)
    weight = checkpoint.take(f"{name}.weight", *like.weight.shape)
    norm.weight = nn.Parameter(weight.to(like.weight.dtype), requires_grad=False)
    return norm


def load_layer(checkpoint: Checkpoint, layout: Layout, target: TransformersRunner) -> Any:
    """Return a model of the target's class that has the head's layer and the norm after it.

    Raises:
        ModelLoadError: a tensor is missing, has another shape, or is not used.
    """
    state = {
        f"model.layers.0.{name.removeprefix(layout.layer)}": checkpoint.tensors.pop(name)
        for name in name_tensors(checkpoint, layout)
    }
    state["model.norm.weight"] = checkpoint.take(f"{layout.norm}.weight", target.hidden_size)
    state |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), torch.zeros(1, target.hidden_size))
    try:
        with hide_reports():
            loaded: Any = type(target.paged.model).from_pretrained(
                None,
                config=make_single(target.paged.model.config.get_text_config()),
                state_dict=state,
                dtype=target.dtype,
                attn_implementation=NAME,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except TailraceError:
        raise
    except Exception as error:  # whatever a model's code raises
        raise ModelLoadError(f"{checkpoint.folder}: its MTP head can't be loaded: {take_first_line(error)}") from error
    model, report = loaded
    refuse_differences(checkpoint.folder, layout, report)
    return model


def refuse_differences(folder: Path, layout: Layout, report: dict[str, Any]) -> None:
    """Raise ModelLoadError if the file's tensors are not those of the layer."""

    def name(own: str) -> str:
        return own.replace("model.layers.0.", layout.layer)

    for own, found, wanted in sorted(report["mismatched_keys"]):
        raise ModelLoadError(f"{folder}: {name(own)} must be {list(wanted)}, got {list(found)}")
    if missing := sorted(map(name, report["missing_keys"])):
        raise ModelLoadError(f"{folder}: its MTP head is not all there: {missing[0]} is missing")
    if unused := sorted(map(name, report["unexpected_keys"])):
        raise ModelLoadError(f"{folder}: tensors of its MTP head that nothing here uses: {', '.join(unused[:3])}")
    if report["error_msgs"]:
        raise ModelLoadError(f"{folder}: its MTP head can't be loaded: {report['error_msgs'][0]:.300}")


def attach_head(folder: Path, model: Any, target: TransformersRunner) -> PagedModel:
    """Return the head's model on paged memory, with our kernels.

    Raises:
        ModelLoadError: its paged form does not reproduce the model.
    """
    with report_nonfinite(folder, model), explain_errors(type(model).__name__):
        paged = attach_memory(model, target.block_size, target.paged.layers.batch_invariant)
        settle_long_rope(model, target.max_model_len)
        check_reproduced(paged)
    return swap_modules(paged, Adapters({}, model, more=False))
