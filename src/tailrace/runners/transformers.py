"""Any causal language model of transformers as a ModelRunner: a flat batch of tokens, our attention over our paged
cache.

The model's own code runs unchanged, except for its attention function (transformers' attention interface), its scans
(runners/recurrent.py) and, on the CPU or where it must be batch-invariant, for modules that runners/fuse.py replaces.
Models that can't be served correctly are refused at load: a trial run compares our logits with those of the model's own
eager attention.

(More than 300 lines: one class with three protocols, and how it is loaded.)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError, TailraceError
from tailrace.extras import needs
from tailrace.kernels.cpu.memory import MemoryAhead
from tailrace.kernels.transfer import there
from tailrace.runners import probe
from tailrace.runners.attention import NAME, AttentionLayer, AttentionState, AttentionStep, attach, attend
from tailrace.runners.base import Batch
from tailrace.runners.fuse import difference, fuse
from tailrace.runners.graphs import GraphRecorder, Graphs, Launch
from tailrace.runners.inputs import moved
from tailrace.runners.invariant import PlaceIndependent, needed
from tailrace.runners.invariant_gpu import RowsIndependent
from tailrace.runners.load_checks import (
    TRIAL_TOKENS,
    TRIALS,
    check_logits,
    decode_trial,
    dequantise_at_load,
    explained,
    finite,
    leave_images_out,
    pick_device,
    pick_kv_code,
    refuse_encoder_decoder,
    settle_dtypes,
    trial_batch,
    trial_steps,
    usable_cores,
)
from tailrace.runners.load_errors import unloadable
from tailrace.runners.lora import Adapters
from tailrace.runners.masks import made_mask
from tailrace.runners.quantized import QuantizedEmbedding, admit
from tailrace.runners.recorded import NotRepeatableError, RecordedSteps
from tailrace.runners.recurrent import attach_recurrent, walks
from tailrace.runners.reproduction import WITHOUT_INTERFACE, Layers, NotReproducedError, reproduce, takes_positions
from tailrace.runners.rope import settle_long_rope
from tailrace.runners.stack import Stack
from tailrace.runners.states import RecurrentLayer, RecurrentState, Walk

log = logging.getLogger(__name__)
TILED_ROWS = (1, 17, 33, 65, 129, 1024)  # every tile of kernels/gpu/linear.py, compiled before any request


class TransformersRunner:
    """See runners.base.ModelRunner and StatefulRunner. Load with `TransformersRunner.load`."""

    def __init__(
        self,
        model: Any,
        block_size: int,
        max_num_seqs: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        self.vocab_size: int = model.get_output_embeddings().out_features
        self.max_model_len: int = getattr(config, "max_position_embeddings", None) or getattr(
            config, "n_positions", 2048
        )
        self.model, self.block_size = model, block_size
        self.layers, self.states = AttentionState(), RecurrentState()
        self.recurrent: list[RecurrentLayer] = attach_recurrent(model, self.states)
        self.attention: list[AttentionLayer] = attach(model, self.layers, walks)
        if not self.attention and not self.recurrent:
            raise ModelLoadError(f"{type(model).__name__} has neither attention nor states that are known; not served")
        self.dtype, self.device = model.dtype, model.device
        self.num_layers, self.hidden_size = len(self.attention), config.hidden_size
        self._stack: Stack | None = None  # made when a drafter asks for hidden states
        # of the largest CUDA graph; 0: there are none. States have none: the host plans the walk along the sequences
        self.max_num_seqs = 0 if self.recurrent else max_num_seqs
        self.graphs: Graphs | RecordedSteps | None = None  # decode steps without the model's code
        self.records = False  # on a CPU: there shall be recorded steps
        self.memory_ahead: MemoryAhead | None = None  # on a CPU, of the engine's cache
        self.invariant: Callable[[], AbstractContextManager[Any]] = nullcontext  # what a pass runs in
        self.lora: Adapters | None = None
        self.kv_code: torch.dtype | None = None  # of the engine's cache; while the model is checked there is none
        taken = inspect.signature(model.forward).parameters
        self.picks_logits, self.takes_positions = "logits_to_keep" in taken, takes_positions(model)

    @classmethod
    def load(
        cls, config: ModelConfig, folder: Path, *, block_size: int, max_num_seqs: int = 0, max_model_len: int = 0
    ) -> TransformersRunner:
        """Load the model in `folder`, attach its layers to the cache, and swap in modules of our kernels on the CPU,
        and where it must be batch-invariant.
        max_num_seqs, max_model_len: see load_runner.

        Raises:
            ModelLoadError: the folder has no such model, or the model needs what the paged cache can't do.
            ConfigError: the device or dtype is not available.
        """
        device = pick_device(config.device)
        code = pick_kv_code(config.kv_cache_dtype, device)
        dtype = getattr(torch, config.dtype)
        if device.type == "cpu":
            take_threads(config)
        model = load_model(folder, dtype, device, config.trust_remote_code)
        recorded = max_num_seqs if config.cuda_graphs and device.type == "cuda" else 0
        with finite(folder, model), explained(type(model).__name__):
            runner = cls(model, block_size, recorded)
            runner.records = config.cpu_graphs and device.type == "cpu" and not runner.recurrent
            settle_long_rope(model, min(max_model_len or runner.max_model_len, runner.max_model_len))
            runner.check()
        adapters = Adapters({name: Path(path).expanduser() for name, path in config.adapters.items()}, model)
        runner.make_trial_memory()
        runner.layers.batch_invariant = config.batch_invariant
        if device.type == "cpu" or config.batch_invariant:
            with explained(type(model).__name__):
                log.info("fused %s", ", ".join(fuse(model, runner.trial, adapters.owners(model))) or "nothing")
                runner.invariant = needed(PlaceIndependent if device.type == "cpu" else RowsIndependent, runner.trial)
        if adapters.names:
            runner.lora = adapters
            adapters.attach(
                model,
                lambda rows: runner.forward(trial_batch(runner.vocab_size, block_size, rows)),
                TRIAL_TOKENS,
            )
        runner.layers.caches, runner.states.memory, runner.kv_code = [], {}, code
        if code is not None and not runner.attention:
            raise ConfigError(
                f"model.kv_cache_dtype {config.kv_cache_dtype} (--kv-cache-dtype): {type(model).__name__} has no KV "
                "cache; use auto"
            )
        if device.type == "cpu" and not runner.recurrent:
            # Additions are left to torch. Its threads would spin for the next one on the cores that our kernels need.
            torch.set_num_threads(1)
        return runner

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters; the first is number 1 in a Batch."""
        return () if self.lora is None else self.lora.names

    @property
    def block_bytes(self) -> int:
        kept = (self.dtype.itemsize, 0) if self.kv_code is None else (self.kv_code.itemsize, torch.float32.itemsize)
        return sum(a.position_bytes(*kept) for a in self.attention) * self.block_size

    def make_caches(self, num_blocks: int, code: torch.dtype | None = None) -> list[kernels.KVCache]:
        """One cache per attention layer, in their order; layers that share their keys have one cache. code: of what is
        kept; None: dtype's numbers."""
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

    def allocate(self, num_blocks: int) -> None:
        if num_blocks * self.block_size < TRIAL_TOKENS:
            raise ConfigError(f"cache.num_blocks must hold at least {TRIAL_TOKENS} positions, got {num_blocks} blocks")
        if self.states.shapes and not self.states.memory:
            raise ConfigError(f"{type(self.model).__name__} keeps a state per sequence, so it can't be a draft model")
        self.layers.caches = self.make_caches(num_blocks, self.kv_code)
        if self.kv_code is not None:
            plain = sum(a.position_bytes(self.dtype.itemsize) for a in self.attention)
            each, gib = self.block_bytes // self.block_size, num_blocks * self.block_bytes / 2**30
            log.info(
                "KV cache in %s: %d tokens in %.2f GiB, %d bytes each; %s would take %d",
                *(str(self.kv_code).removeprefix("torch."), num_blocks * self.block_size, gib, each),
                *(str(self.dtype).removeprefix("torch."), plain),
            )
        self.trial()  # the first pass is slow, so it runs before any request
        if self.device.type == "cuda":  # on a GPU decode steps use other kernels, and the rows' number chooses some
            for rows in TILED_ROWS if self.layers.batch_invariant else (1,):
                batch = decode_trial(self.vocab_size, self.block_size, rows)
                anybody = torch.zeros(rows, dtype=torch.int64)  # states may be of fewer slots; all begin with zeros
                self.forward(replace(batch, wanted=batch.wanted[:1], slots=anybody))
        if self.max_num_seqs:
            self.graphs = self.record(num_blocks, GraphRecorder(self.device))
        elif self.records:
            self.graphs = self.record_calls(num_blocks)
        if self.device.type == "cpu":  # from the first step on: the bound of memory (engine/memory.py) is set before it
            caches = {id(cache): cache for cache in self.layers.caches}.values()  # layers may share one
            self.memory_ahead = MemoryAhead([part for cache in caches for part in (cache.keys, cache.values)])

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        source, target = there(torch.tensor(pairs), self.device).unbind(1)
        for layer, cache in zip(self.attention, self.layers.caches, strict=True):
            if layer.source == layer.index:
                cache.copy_blocks(source, target)

    @property
    def state_bytes(self) -> int:
        return self.states.entry_bytes

    def allocate_states(self, slots: int, rows: int) -> None:
        self.states.allocate(slots, rows, self.device)

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        self.states.copy(pairs)

    @property
    def stack(self) -> Stack:
        """The model's layers.

        Raises:
            ModelLoadError: the model has no list of them, or layers with states.
        """
        if self.states.shapes:
            raise ModelLoadError(
                f"{type(self.model).__name__} keeps a state per sequence: drafters that look into it are not supported"
            )
        if self._stack is None:
            self._stack = Stack(self.model, self.num_layers)
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
        embedding, ids = self.model.get_input_embeddings(), there(token_ids, self.device)
        if isinstance(embedding, QuantizedEmbedding):
            return embedding(ids)
        return torch.nn.functional.embedding(ids, embedding.weight)

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.get_output_embeddings()(hidden)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        if self.memory_ahead is not None:
            self.memory_ahead.used(1 + int(batch.slot_mapping.max()) // self.block_size)
        if self.graphs is not None and not self.captures and not batch.adapted and self.graphs.serves(batch):
            try:
                return self.graphs(batch)
            except NotRepeatableError as error:  # with more sequences than at load the model's code goes another way
                log.warning("no recorded decode steps from here on: %s", error)
                self.graphs = None
        logits = self.logits(batch)
        if self._stack is not None:
            self._stack.keep()
        return logits

    @torch.inference_mode()
    def forward_layers(self, batch: Batch, layers: int) -> torch.Tensor:
        with self.stack.cut(layers):
            return self.logits(batch)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits of the wanted tokens, [L, V], through the current layers."""
        if not self.states.shapes:
            return self.run(moved(batch, self.device))
        self.states.walk = Walk(batch, self.states.rows, self.device)
        try:
            return self.run(moved(batch, self.device))
        finally:
            self.states.walk = None

    def run(self, batch: Batch) -> torch.Tensor:
        """As `logits`, for a batch on the device. The host waits for nothing."""
        if self.lora is not None:
            self.lora.take(batch.adapted, len(batch.token_ids), self.device)
        self.layers.step = AttentionStep(batch.slot_mapping, batch.query_start, batch.kv_len, batch.block_tables)
        options: dict[str, Any] = {"logits_to_keep": batch.wanted} if self.picks_logits else {}
        if self.takes_positions:  # a model without attention has no use for them
            options["position_ids"] = batch.positions[None]
        try:
            with self.invariant():
                logits = self.model(input_ids=batch.input_ids(self.device)[None], use_cache=False, **options).logits[0]
        finally:
            self.layers.step = None
        return logits if self.picks_logits else logits[batch.wanted]

    # ---- at load

    def make_trial_memory(self) -> None:
        """Caches and states for the trial run."""
        self.layers.caches = self.make_caches(-(-TRIAL_TOKENS // self.block_size))
        self.states.allocate(1, 2, self.device)

    def trial(self) -> torch.Tensor:
        """Logits of a short fixed prompt through the paged cache, using its first blocks."""
        return self.forward(trial_batch(self.vocab_size, self.block_size)).clone()

    def table_width(self, num_blocks: int) -> int:
        """The most blocks that a sequence can have."""
        return -(-min(self.max_model_len, num_blocks * self.block_size) // self.block_size)

    @torch.inference_mode()
    def record(self, num_blocks: int, capture: Callable[[Launch], Launch]) -> Graphs | None:
        """The decode steps as graphs, or None if their logits differ. Call it after the trial, whose positions are in
        the cache."""
        batches = [
            decode_trial(self.vocab_size, self.block_size, n) for n in {1, min(3, self.max_num_seqs), self.max_num_seqs}
        ]
        graphs, problem = None, ""
        try:
            graphs = Graphs(self.run, self.max_num_seqs, self.table_width(num_blocks), self.device, capture)
            for batch in batches:
                problem = problem or difference(self.logits(batch), graphs(batch))
        except RuntimeError as error:  # the model's code makes the host wait, or there is no memory left
            problem = str(error)
        if problem:
            log.warning("no CUDA graphs: %s", problem)
        return None if problem else graphs

    @torch.inference_mode()
    def record_calls(self, num_blocks: int) -> RecordedSteps | None:
        """The decode steps as recorded calls, or None if the model's code does more than call. Call it after the trial,
        whose positions are in the cache."""
        steps, problem = RecordedSteps(self.run, self.table_width(num_blocks)), ""
        try:
            for sequences in (1, 3):
                steps(decode_trial(self.vocab_size, self.block_size, sequences, -2))  # recorded with other inputs
                batch = decode_trial(self.vocab_size, self.block_size, sequences)
                if not torch.equal(self.logits(batch), steps(batch)):
                    problem = "their logits are not the model's"
        except (RuntimeError, TypeError, ValueError) as error:
            problem = str(error)
        if problem:
            log.info("no recorded decode steps: %s", problem)
        return None if problem else steps

    @torch.inference_mode()
    def check(self) -> None:
        """Find out what every layer asks of attention, and that the model is reproduced; see runners/reproduction.py.
        Where rounding sends a token to other experts, all that comes behind it may differ; so in less than float32
        another prompt is tried. A wrong formula fails with each.

        Raises:
            ModelLoadError: it is not.
        """
        last = 0 if self.dtype == torch.float32 else TRIALS - 1
        for number in range(last + 1):
            try:
                self.check_prompt(number)
                break
            except NotReproducedError:
                if number == last:
                    raise
        self.layers.own_keys.clear()

    def check_prompt(self, number: int) -> None:
        """The check with one of the trial's prompts."""
        far = max(0, self.max_model_len - TRIAL_TOKENS)
        ids, batches = trial_steps(self.vocab_size, self.block_size, far, number)

        def served() -> list[torch.Tensor]:
            self.layers.caches = self.make_caches(2 * -(-TRIAL_TOKENS // self.block_size))
            self.states.allocate(2, 2, self.device)
            logits = [self.logits(batch) for batch in batches]
            self.layers.caches, self.states.memory = [], {}
            check_logits(torch.cat(logits))
            return logits

        reproduce(self.model, Layers(self.attention, self.states), ids.to(self.device), far, served)


def refuse_missing(folder: Path, names: list[str]) -> None:
    """Raise ModelLoadError if there are such weights: transformers would make them up at random."""
    if names:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ModelLoadError(f"{folder}: the model's weights are not all there: {names[0]}{others} missing")


def take_threads(config: ModelConfig) -> None:
    """The threads of torch and of our kernels on a CPU.

    Raises:
        ConfigError: there are no kernels for the dtype.
    """
    if config.dtype == "float16":
        raise ConfigError("dtype float16 has no kernels on the CPU; use bfloat16 or float32")
    threads = config.threads or usable_cores()
    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device, trust_remote_code: bool) -> Any:
    """The folder's causal language model, in evaluation mode, with our attention function."""
    with needs("serve"):
        from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    AttentionInterface.register(NAME, attend)
    AttentionInterface.register(probe.NAME, probe.probe)
    AttentionMaskInterface.register(probe.NAME, made_mask)
    config: Any = None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        refuse_encoder_decoder(config)
        dequantise_at_load(config)
        leave_images_out(config)
        admit(config, device)
        quantized = getattr(config, "quantization_config", None) is not None  # transformers may delete it
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
        model, report = loaded
        refuse_missing(folder, sorted(report["missing_keys"]))
    except TailraceError:
        raise
    except KeyError as error:
        if error.args == (NAME,):  # it looks for one of its own attention classes
            raise ModelLoadError(f"{folder}: {config.model_type} {WITHOUT_INTERFACE}") from error
        raise unloadable(folder, config, error, trust_remote_code) from error
    except Exception as error:  # whatever transformers' checks and a model's code raise
        raise unloadable(folder, config, error, trust_remote_code) from error
    torch.nn.Module.to(model, device)
    if quantized:
        settle_dtypes(model, dtype)
    return model.eval()
