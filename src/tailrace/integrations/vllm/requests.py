"""The requests of vLLM's batch in tailrace's slots, followed through the updates that vLLM gives its logits processors.

A request keeps its slot however vLLM moves its row. Its output is a list of vLLM's own, which grows with it: a slot is
told of new tokens right before the next draw, so that tokens which vLLM has discarded never reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from tailrace.errors import ParameterError
from tailrace.integrations.vllm.translate import refused, translated
from tailrace.sampling import KeySource, Sampler, Slots

PLACEHOLDER = -1  # of a token that vLLM has not read yet


class NotKnownYetError(Exception):
    """A slot must be told of tokens that vLLM itself does not know yet."""


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """One request of the batch. output: vLLM's list, which grows. slot: −1 until it joins, and where it is refused.
    reads: its slot must be told of its tokens, of which it knows the first `known`. refusal: why vLLM serves it
    itself."""

    params: SamplingParams
    prompt: Sequence[int] | None
    output: list[int]
    slot: int = -1
    reads: bool = False
    known: int = 0
    refusal: str = ""


@dataclass(slots=True)
class FollowedBatch:
    """The batch since its last change, in the order of vLLM's rows. served, slots, requests: those that tailrace
    serves, by row, by slot and themselves. readers: those among them whose slots must be told of their tokens.
    refusals: why vLLM serves the others."""

    served: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    requests: list[FollowedRequest] = field(default_factory=list)
    readers: list[FollowedRequest] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class BatchFollower(LogitsProcessor):
    """Changes no logits; knows who is in which row. newest: of this process."""

    newest: ClassVar[BatchFollower | None] = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.num_slots = vllm_config.scheduler_config.max_num_seqs
        self.logprobs_mode: str = vllm_config.model_config.logprobs_mode
        self.drafts = getattr(vllm_config, "speculative_config", None) is not None
        self.keys = KeySource(default_seed(vllm_config))
        self.rows: list[FollowedRequest | None] = []
        self.slots: Slots | None = None  # made at the first draw, which says how wide the logits are
        self.sampler: Sampler | None = None
        self.warm = False
        self.free: list[int] = []  # slots, once there are some
        self.batch: FollowedBatch | None = None

    # ---- as vLLM's logits processor

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Who has left, who has come, who has moved; in this order, as vLLM has it."""
        if batch_update is None:
            return
        self.batch = None
        rows = self.rows
        moved_rows = [row for source, target, _ in batch_update.moved for row in (source, target)]
        named = [*batch_update.removed, *(row for row, *_ in batch_update.added), *moved_rows]
        rows.extend([None] * (max([batch_update.batch_size - 1, *named]) + 1 - len(rows)))
        for row in batch_update.removed:
            self._put(row, None)
        for row, params, prompt, output in batch_update.added:
            self._put(row, FollowedRequest(params, prompt, output))
        for source, target, direction in batch_update.moved:
            if direction is MoveDirectionality.SWAP:
                rows[source], rows[target] = rows[target], rows[source]
            else:
                moved, rows[source] = rows[source], None
                self._put(target, moved)
        for row in range(batch_update.batch_size, len(rows)):
            self._put(row, None)
        del rows[batch_update.batch_size :]

    def _put(self, row: int, request: FollowedRequest | None) -> None:
        """The row is this request's. Whoever was there leaves."""
        left, self.rows[row] = self.rows[row], request
        if left is not None and left.slot >= 0 and self.slots is not None:
            self.slots.remove(left.slot)
            self.free.append(left.slot)

    # ---- for the draw

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile kernels, and take the memory that they work in, once."""
        sampler = self._sampler_for(logits.shape[-1])
        if not self.warm:
            sampler.warm_up({logits.dtype}, logits.device)
        self.warm = True

    def ready(self, vocab_size: int) -> FollowedBatch:
        """The batch, each of its requests with a slot, and told of its tokens.

        Raises:
            NotKnownYetError: vLLM does not know some of these tokens yet; or, beside drafts, how many they are.
        """
        self._sampler_for(vocab_size)
        if self.drafts and any(request.output[-1:] == [PLACEHOLDER] for request in self.rows if request):
            raise NotKnownYetError
        if self.batch is None:
            self.batch = self._joined()
        for request in self.batch.readers:
            if len(request.output) != request.known:
                self._tell(request)
        return self.batch

    def _sampler_for(self, vocab_size: int) -> Sampler:
        """Of logits so wide; the first draw says it."""
        if self.sampler is None or self.sampler.slots.vocab_size != vocab_size:
            self.slots = Slots(self.num_slots, vocab_size, default_keys=self.keys)
            self.sampler = Sampler(self.slots)
            self.free, self.batch = list(range(self.num_slots)), None
            for request in self.rows:
                if request is not None:
                    request.slot, request.refusal = -1, ""
        return self.sampler

    def _joined(self) -> FollowedBatch:
        batch = FollowedBatch()
        for row, request in enumerate(self.rows):
            if request is None:
                batch.refusals.append("an empty row")
                continue
            if request.slot < 0 and not request.refusal:
                self._join(request)
            if request.refusal:
                batch.refusals.append(request.refusal)
                continue
            batch.served.append(row)
            batch.slots.append(request.slot)
            batch.requests.append(request)
            if request.reads:
                batch.readers.append(request)
        return batch

    def _join(self, request: FollowedRequest) -> None:
        """Give the request a slot, or a reason why it has none."""
        assert self.slots is not None
        params = request.params
        if refusal := "a prompt of embeddings" if request.prompt is None else refused(params):
            request.refusal = refusal
            return
        if PLACEHOLDER in request.output:
            raise NotKnownYetError
        size = self.slots.vocab_size
        prompt = request.prompt or []
        try:
            self.slots.add(
                self.free[-1],
                translated(params, "processed" if self.logprobs_mode.startswith("processed") else "raw"),
                prompt=prompt if max(prompt, default=0) < size else [id for id in prompt if id < size],
                output=list(request.output),
                eos_token_ids=sorted(params.all_stop_token_ids),
            )
        except ParameterError as error:
            request.refusal = str(error)
            return
        request.slot, request.known = self.free.pop(), len(request.output)
        request.reads = self.slots.reads_output(request.slot)

    def _tell(self, request: FollowedRequest) -> None:
        """The slot's output is vLLM's list from now on."""
        assert self.slots is not None
        new = request.output[request.known :]
        if PLACEHOLDER in new:
            raise NotKnownYetError
        if len(request.output) > request.known:
            self.slots.commit([request.slot], [new])
        else:  # vLLM has taken tokens back: their keys and values could not be loaded
            self.slots.adopt(request.slot, list(request.output))
        request.known = len(request.output)

    def positions(self, batch: FollowedBatch) -> list[int]:
        """Of the next token of each request that is served."""
        return [len(request.prompt or ()) + len(request.output) for request in batch.requests]


def default_seed(vllm_config: Any) -> int:
    """Of the keys of requests without a seed: the same for all ranks of an engine, another for each engine."""
    parallel = vllm_config.parallel_config  # each engine of a dense model has rank 0, and another index
    engine = (parallel.data_parallel_rank, getattr(parallel, "data_parallel_index", 0))
    parts = (getattr(vllm_config, "instance_id", ""), vllm_config.model_config.seed, engine)
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little", signed=True)
