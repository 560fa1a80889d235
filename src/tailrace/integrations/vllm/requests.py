"""The requests of vLLM's batch in tailrace's slots, followed through the updates that vLLM gives its logits processors.

A request keeps its slot however vLLM moves its row. Its output is a list of vLLM's own, which grows with it: a slot is
told of new tokens right before the next draw, so that tokens which vLLM has discarded never reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from tailrace.integrations.vllm.fallbacks import LeftToVllmError
from tailrace.integrations.vllm.translate import add
from tailrace.sampling import KeySource, Sampled, Sampler, Slots

PLACEHOLDER = -1  # of a token that vLLM has not read yet
NOT_KNOWN = "tokens that vLLM has not read yet (asynchronous scheduling)"


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


class FollowedBatch(NamedTuple):
    """The batch since its last change, in the order of vLLM's rows. served, slots, requests: those that tailrace
    serves, by row, by slot and themselves. refusals: why vLLM serves the others."""

    served: list[int]
    slots: list[int]
    requests: list[FollowedRequest]
    refusals: list[str]

    def positions(self) -> list[int]:
        """Of the next token of each request that is served."""
        return [len(request.prompt or ()) + len(request.output) for request in self.requests]


class BatchFollower(LogitsProcessor):
    """Changes no logits; knows who is in which row. newest: of this process. fields: of all requests, as the server has
    them. drawn: the rows that tailrace served in this step, and how, where masks are asked for."""

    newest: ClassVar[BatchFollower | None] = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        count, model = vllm_config.scheduler_config.max_num_seqs, vllm_config.model_config
        self.slots = Slots(count, model.get_vocab_size(), default_keys=KeySource.shared(*identity(vllm_config)))
        self.sampler = Sampler(self.slots)
        self.fields = {
            "logprobs_mode": "processed" if model.logprobs_mode.startswith("processed") else "raw",
            "return_sampling_mask": getattr(model, "return_sampling_mask", False),
        }
        self.drawn: tuple[list[int], Sampled | None] = ([], None)
        self.rows: dict[int, FollowedRequest] = {}
        self.batch: FollowedBatch | None = None
        BatchFollower.newest = self

    # ---- as vLLM's logits processor

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Some have left, come or moved."""
        if batch_update is None:
            return
        before = list(self.rows.values())
        process_dict_updates(self.rows, batch_update, FollowedRequest)
        staying = set(self.rows.values())
        for left in before:
            if left not in staying and left.slot >= 0:
                self.slots.remove(left.slot)
        self.batch = None

    # ---- for the draw

    def ready(self) -> FollowedBatch:
        """The batch, whose slots know all that their requests have said.

        Raises:
            LeftToVllmError: one would have to be told a token that vLLM does not know yet.
        """
        if self.batch is None:
            self.batch = self._joined()
        for request in self.batch.requests:
            if request.reads and len(request.output) != request.known:
                self._tell(request)
        return self.batch

    def _joined(self) -> FollowedBatch:
        rows = sorted(self.rows.items())
        for _, request in rows:
            if request.slot < 0 and not request.refusal:
                self._join(request)
        served = [row for row, request in rows if not request.refusal]
        requests = [self.rows[row] for row in served]
        return FollowedBatch(
            served,
            slots=[request.slot for request in requests],
            requests=requests,
            refusals=[request.refusal for _, request in rows if request.refusal],
        )

    def _join(self, request: FollowedRequest) -> None:
        """Give the request a slot, or a reason why it has none."""
        if request.prompt is None:
            request.refusal = "a prompt of embeddings"
            return
        if PLACEHOLDER in request.output:
            raise LeftToVllmError(NOT_KNOWN)
        slot, size = self.slots.slots.index(None), self.slots.vocab_size
        prompt = [id for id in request.prompt if id < size]  # an image's placeholder may have no logit
        request.refusal = add(self.slots, slot, request.params, self.fields, prompt, list(request.output))
        if not request.refusal:
            request.slot, request.known = slot, len(request.output)
            request.reads = self.slots.reads_output(slot)

    def _tell(self, request: FollowedRequest) -> None:
        """The slot's output is vLLM's list from now on."""
        new = request.output[request.known :]
        if PLACEHOLDER in new:
            raise LeftToVllmError(NOT_KNOWN)
        if new:
            self.slots.commit([request.slot], [new])
        else:  # vLLM has taken tokens back: their keys and values could not be loaded
            self.slots.adopt(request.slot, list(request.output))
        request.known = len(request.output)


def identity(vllm_config: Any) -> tuple[object, ...]:
    """What keys of requests without a seed come from: the same for all ranks of an engine, another for each engine."""
    parallel = vllm_config.parallel_config  # each engine of a dense model has rank 0, and another index
    engine = (parallel.data_parallel_rank, getattr(parallel, "data_parallel_index", 0))
    return getattr(vllm_config, "instance_id", ""), vllm_config.model_config.seed, engine
