"""Any causal language model of transformers as a runner. runners/load_transformers.py loads one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tailrace.errors import ConfigError, ModelLoadError
from tailrace.kernels.cpu.memory import MemoryAhead
from tailrace.kernels.transfer import there
from tailrace.runners.base import Batch, LayeredRunner, StatefulRunner
from tailrace.runners.graphs import Graphs
from tailrace.runners.lora import Adapters, Weights
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.quantized import QuantizedEmbedding
from tailrace.runners.recorded import RecordedSteps
from tailrace.runners.stack import Stack
from tailrace.runners.step_recorder import NotRepeatableError
from tailrace.runners.trials import TRIAL_TOKENS, decode_trial

log = logging.getLogger(__name__)
TILED_ROWS = (1, 17, 33, 65, 129, 1024)  # every tile of kernels/gpu/linear.py, compiled before any request
DecodeSteps = Graphs | RecordedSteps


class TransformersRunner(StatefulRunner, LayeredRunner):
    """A model, its memory, and its decode steps without the model's code.

    Args:
        kv_code: of the cache, see PagedModel.make_caches.
        record_steps: width of a block table → the recorded decode steps; called once the cache is allocated.
    """

    def __init__(
        self,
        paged: PagedModel,
        kv_code: torch.dtype | None = None,
        record_steps: Callable[[int], DecodeSteps | None] | None = None,
    ) -> None:
        adapters = () if paged.lora is None else paged.lora.names
        super().__init__(paged.vocab_size, paged.max_model_len, paged.device, paged.dtype, adapters)
        self.paged, self.block_size, self.kv_code, self.record_steps = paged, paged.block_size, kv_code, record_steps
        text = paged.model.config.get_text_config()
        self.num_layers: int = text.num_hidden_layers if paged.recurrent else len(paged.attention)
        self.hidden_size: int = text.hidden_size
        self.decode_steps: DecodeSteps | None = None
        self.memory_ahead: MemoryAhead | None = None  # on a CPU, of the cache
        self._stack: Stack | None = None  # made when a drafter asks for hidden states

    # ---- adapters

    @property
    def takes_adapters(self) -> bool:
        return self.paged.lora is not None and self.paged.lora.more

    def read_adapter(self, name: str, folder: Path) -> Weights:
        return self._lora.read(name, folder)

    def add_adapter(self, name: str, weights: Weights) -> int:
        self._lora.add(name, weights)
        self.adapters = self._lora.names
        on_device = self.device.type != "cpu"
        return 0 if on_device else sum(part.nbytes for pair in weights.values() for part in pair)

    def retire_adapter(self, name: str) -> None:
        self._lora.retire(name)
        self.adapters = self._lora.names

    def drop_adapter(self, number: int) -> None:
        self._lora.drop(number)

    @property
    def _lora(self) -> Adapters:
        if self.paged.lora is None or not self.paged.lora.more:
            raise ModelLoadError("the model was loaded without a folder of adapters (--lora-folder)")
        return self.paged.lora

    # ---- memory

    @property
    def block_bytes(self) -> int:
        return self.paged.block_bytes(self.kv_code)

    def allocate(self, num_blocks: int) -> None:
        positions, paged = num_blocks * self.block_size, self.paged
        if positions < TRIAL_TOKENS:
            raise ConfigError(f"cache.num_blocks must hold at least {TRIAL_TOKENS} positions, got {num_blocks} blocks")
        if paged.states.shapes and not paged.states.memory:
            raise ConfigError(f"{type(paged.model).__name__} keeps a state per sequence, so it can't be a draft model")
        paged.layers.caches = paged.make_caches(num_blocks, self.kv_code)
        paged.layers.index_keys = paged.make_index_keys(num_blocks)
        if self.kv_code is not None:
            self._log_cache(num_blocks)
        paged.run_trial()  # the first pass is slow, so it runs before any request
        if self.device.type == "cuda":
            self._warm_up()
        if self.record_steps is not None:
            self.decode_steps = self.record_steps(-(-min(self.max_model_len, positions) // self.block_size))
        if self.device.type == "cpu":  # from the first step on: the bound of memory (engine/memory.py) is set before it
            caches = {id(cache): cache for cache in paged.layers.caches}.values()  # layers may share one
            self.memory_ahead = MemoryAhead([part for cache in caches for part in (cache.keys, cache.values)])

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        source, target = there(torch.tensor(pairs), self.device).unbind(1)
        for layer, cache in zip(self.paged.attention, self.paged.layers.caches, strict=True):
            if layer.source == layer.index:
                cache.copy_blocks(source, target)
        for keys in self.paged.layers.index_keys:
            keys[target] = keys[source]

    @property
    def state_bytes(self) -> int:
        return self.paged.states.entry_bytes

    def allocate_states(self, slots: int, rows: int, snapshots: int) -> None:
        self.paged.states.allocate(slots, rows, self.device, snapshots)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        self.paged.states.copy(pairs)

    # ---- passes

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        if self.memory_ahead is not None:
            self.memory_ahead.used(1 + int(batch.slot_mapping.max()) // self.block_size)
        if (
            self.decode_steps is not None
            and not self.captures
            and not batch.adapted
            and self.decode_steps.serves(batch)
        ):
            try:
                return self.decode_steps(batch)
            except NotRepeatableError as error:  # with more sequences than at load the model's code goes another way
                log.warning("no recorded decode steps from here on: %s", error)
                self.decode_steps = None
        logits = self.paged.logits(batch)
        if self._stack is not None:
            self._stack.keep()
        return logits

    @torch.inference_mode()
    def forward_layers(self, batch: Batch, layers: int) -> torch.Tensor:
        if self.paged.states.shapes:
            raise ModelLoadError(f"{type(self.paged.model).__name__} keeps a state per sequence: it can't be cut short")
        with self.stack.cut(layers):
            return self.paged.logits(batch)

    # ---- layers

    @property
    def stack(self) -> Stack:
        """The model's layers.

        Raises:
            ModelLoadError: the model has no list of them.
        """
        if self._stack is None:
            self._stack = Stack(self.paged.model, self.num_layers)
        return self._stack

    def capture(self, layers: tuple[int, ...]) -> None:
        self.stack.capture(layers)

    @property
    def captures(self) -> tuple[int, ...]:
        """The layers whose outputs are kept in `hidden`."""
        return () if self._stack is None else self._stack.captures

    @property
    def hidden(self) -> torch.Tensor:
        return self.stack.hidden

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedding, ids = self.paged.model.get_input_embeddings(), there(token_ids, self.device)
        if isinstance(embedding, QuantizedEmbedding):
            return embedding(ids)
        return torch.nn.functional.embedding(ids, embedding.weight)

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.paged.model.get_output_embeddings()(hidden)

    # ---- inside

    def _log_cache(self, num_blocks: int) -> None:
        each, plain = (size // self.block_size for size in (self.block_bytes, self.paged.block_bytes()))
        gib = num_blocks * self.block_bytes / 2**30
        log.info(
            "KV cache in %s: %d tokens in %.2f GiB, %d bytes each; %s would take %d",
            *(str(self.kv_code).removeprefix("torch."), num_blocks * self.block_size, gib, each),
            *(str(self.dtype).removeprefix("torch."), plain),
        )

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """On a GPU decode steps use other kernels, and the number of rows chooses some."""
        for rows in TILED_ROWS if self.paged.layers.batch_invariant else (1,):
            batch = decode_trial(self.vocab_size, self.block_size, rows)
            nobody = torch.full((rows,), -1)  # there may be states of fewer slots
            self.paged.logits(replace(batch, wanted=batch.wanted[:1], slots=nobody))
