"""A model of transformers on our memory: a forward pass over a flat batch, with our attention over our paged cache.

The model's own code runs unchanged, except for its attention function (transformers' attention interface) and its scans
(runners/recurrent.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.models.context import context_length
from tailrace.runners.attention import AttentionLayer, AttentionState, AttentionStep, SequenceSpan, attach_layers
from tailrace.runners.base import Batch
from tailrace.runners.indexers import IndexerLayer, attach_indexers
from tailrace.runners.inputs import move_batch
from tailrace.runners.lora import Adapters, Rows
from tailrace.runners.recurrent import attach_recurrent, has_state
from tailrace.runners.states import RecurrentLayer, RecurrentState
from tailrace.runners.trials import TRIAL_TOKENS, trial_batch

UNSTATED = 2048  # tokens, the context of a model that states none


@dataclass(frozen=True)
class PagedModel:
    """A model whose layers read and write our memory. Made by `attach_memory`.

    - max_model_len: the context that the model states, in tokens.
    - picks_logits: the model takes an argument for the tokens whose logits are wanted.
    - takes_positions: the model takes the positions of tokens.
    - layers, attention: the caches, and the layers that keep keys and values in them.
    - indexers: the modules that select positions for the layers.
    - states, recurrent: the states, and the layers that keep one per sequence.
    - context: a pass runs inside of it.
    - lora: the adapters that are hooked into the model.
    """

    model: Any
    block_size: int
    vocab_size: int
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    picks_logits: bool
    takes_positions: bool
    layers: AttentionState
    attention: list[AttentionLayer]
    states: RecurrentState
    recurrent: list[RecurrentLayer]
    indexers: list[IndexerLayer]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    lora: Adapters | None = None

    def block_bytes(self, code: torch.dtype | None = None) -> int:
        """Return the bytes of a block over all layers. code: see `make_caches`."""
        kept = (self.dtype.itemsize, 0) if code is None else (code.itemsize, torch.float32.itemsize)
        positions = sum(layer.position_bytes(*kept) for layer in self.attention)
        return (positions + sum(each.position_bytes for each in self.indexers)) * self.block_size

    def make_caches(self, num_blocks: int, code: torch.dtype | None = None) -> list[kernels.KVCache]:
        """Return one cache per attention layer, in the layers' order. Layers that share keys have one cache. code: the
        dtype of the stored codes; None: numbers of the model's dtype."""
        caches: list[kernels.KVCache] = []
        for a in self.attention:
            shape = (num_blocks, a.heads, self.block_size, (a.head_dim, a.value_dim), self.dtype)
            if a.source != a.index:
                caches.append(caches[a.source])
            elif code is None:
                caches.append(kernels.make_cache(*shape, self.device))
            else:
                caches.append(kernels.make_quantized_cache(*shape, code))
        return caches

    def make_index_keys(self, num_blocks: int) -> list[torch.Tensor]:
        """Return one memory per indexer, [blocks, block_size, D]. The contents are undefined."""
        shape = (num_blocks, self.block_size)
        return [torch.empty((*shape, each.dim), dtype=each.dtype, device=self.device) for each in self.indexers]

    @contextmanager
    def trial_memory(self, sequences: int = 1) -> Iterator[None]:
        """Provide memory for trials of this number of sequences within the context."""
        blocks = sequences * -(-TRIAL_TOKENS // self.block_size)
        self.layers.caches, self.layers.index_keys = self.make_caches(blocks), self.make_index_keys(blocks)
        self.states.allocate(sequences, 2, self.device)
        try:
            yield
        finally:
            self.layers.caches, self.layers.index_keys, self.states.memory = [], [], {}

    @torch.inference_mode()
    def run_trial(self, adapted: Rows = ()) -> torch.Tensor:
        """Return the logits of a short fixed prompt, computed through the first blocks of the paged cache."""
        return self.logits(trial_batch(self.vocab_size, self.block_size, adapted)).clone()

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the wanted tokens, [L, V]."""
        with self.listing(batch), self.states.walking(self.states.plan_walk(batch, self.device)):
            return self.run(move_batch(batch, self.device))

    @contextmanager
    def listing(self, batch: Batch) -> Iterator[None]:
        """Within this context indexers know the batch's sequences. The batch is on the host."""
        if self.indexers:
            bounds = batch.query_start.tolist()
            spans = zip(bounds, bounds[1:], batch.kv_len.tolist(), strict=False)
            self.layers.spans = [SequenceSpan(*each) for each in spans]
        try:
            yield
        finally:
            self.layers.spans = None

    def run_placed(self, batch: Batch) -> torch.Tensor:
        """As `run`, where the slots are on the device too. The host does not know the sequences, as in a CUDA graph."""
        with self.states.walking(self.states.place_walk(batch)):
            return self.run(batch)

    def run(self, batch: Batch) -> torch.Tensor:
        """As `logits`, for a batch on the device. The host waits for nothing."""
        if self.lora is not None:
            self.lora.take(batch.adapted, len(batch.token_ids), self.device)
        self.layers.step = AttentionStep(batch.slot_mapping, batch.query_start, batch.kv_len, batch.block_tables)
        options: dict[str, Any] = {"logits_to_keep": batch.wanted} if self.picks_logits else {}
        if self.takes_positions:  # a model without attention has no use for them
            options["position_ids"] = batch.positions[None]
        try:
            with self.context():
                logits = self.model(input_ids=batch.input_ids(self.device)[None], use_cache=False, **options).logits[0]
        finally:
            self.layers.step = None
        return logits if self.picks_logits else logits[batch.wanted]


def attach_memory(model: Any, block_size: int, batch_invariant: bool = False) -> PagedModel:
    """Give every layer of the model that keeps something its place in our memory.

    Raises:
        ModelLoadError: no layer keeps anything that is known.
    """
    layers, states = AttentionState(batch_invariant=batch_invariant), RecurrentState()
    recurrent = attach_recurrent(model, states)
    attention = attach_layers(model, layers, has_state)
    indexers = attach_indexers(model, layers)
    if not attention and not recurrent:
        raise ModelLoadError(f"{type(model).__name__} has neither attention nor states that are known; not served")
    config, taken = model.config.get_text_config(), inspect.signature(model.forward).parameters
    passes_on = config is not model.config and any(each.kind is each.VAR_KEYWORD for each in taken.values())
    return PagedModel(
        model,
        block_size,
        vocab_size=model.get_output_embeddings().out_features,
        max_model_len=context_length(config.to_dict()) or UNSTATED,
        device=model.device,
        dtype=model.dtype,
        picks_logits="logits_to_keep" in taken,
        takes_positions="position_ids" in taken or passes_on,  # a model that also sees or hears passes them on
        layers=layers,
        attention=attention,
        states=states,
        recurrent=recurrent,
        indexers=indexers,
    )
