"""The requests of vLLM's batch in tailrace's slots, followed through the updates that vLLM gives its logits processors.

A request keeps its slot, however vLLM moves its row. Its output is vLLM's own list, which grows. A slot gets the new
tokens right before the next draw, so it never sees tokens that vLLM has discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from tailrace.integrations.v1_engine import RowFollower
from tailrace.integrations.vllm.fallbacks import LeftToVllmError, call_or_none
from tailrace.integrations.vllm.translate import add_vllm_request
from tailrace.integrations.vllm.xargs import OURS, READING
from tailrace.sampling import KeySource, Sampled, Sampler, Slots
from tailrace.sampling.slot import Slot

PLACEHOLDER = -1  # id of a token that vLLM has not read yet, and of an empty draft place
NOT_KNOWN = "tokens that vLLM has not read yet (asynchronous scheduling)"
NOT_COUNTED = "drafts whose number vLLM has not read yet (asynchronous scheduling)"
LOST = "requests whose rows are not known, after an error in tailrace"
TOO_MANY = "requests of several steps with an error in tailrace"
REPLACED_RULES = ("standard", "block")  # vLLM's verifications of drafts that keep the distribution
MAX_ERRORS = 3  # steps of a request with an error; then vLLM serves the request to its end


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """One request of the batch.

    - output: vLLM's list, which grows.
    - slot: −1 until the request joins, and if it is refused.
    - reads: the slot needs the request's tokens. It has the first `known` of them.
    - refusal: why vLLM serves the request itself.
    - errors: number of the request's steps in which tailrace raised an error.
    - kept: what its next slot takes over from its last one (arguments of `Slots.add`).
    """

    params: SamplingParams
    prompt: Sequence[int] | None
    output: list[int]
    slot: int = -1
    reads: bool = False
    known: int = 0
    refusal: str = ""
    errors: int = 0
    kept: dict[str, Any] = field(default_factory=dict)


class FollowedBatch(NamedTuple):
    """The batch since its last change, in the order of vLLM's rows.

    - served, slots, requests: the rows, the slots and the requests that tailrace serves.
    - refusals: why vLLM serves the others.
    - greedy: every request takes the largest of the model's own logits, and reports nothing.
    """

    served: list[int]
    slots: list[int]
    requests: list[FollowedRequest]
    refusals: list[str]
    greedy: bool

    def positions(self) -> list[int]:
        """Return the position of the next token of each served request."""
        return [len(request.prompt or ()) + len(request.output) for request in self.requests]


class BatchFollower(RowFollower, LogitsProcessor):
    """What follows vLLM's batch.

    - newest: the newest follower of this process.
    - fields: the server's fields of all requests.
    - drawn: if masks are asked for, the rows that tailrace served in this step and their samples.
    """

    newest: ClassVar[BatchFollower | None] = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        count, model = vllm_config.scheduler_config.max_num_seqs, vllm_config.model_config
        self.slots = Slots(count, model.get_vocab_size(), default_keys=KeySource.shared(*get_key_parts(vllm_config)))
        self.sampler = Sampler(self.slots)
        self.drafting = getattr(vllm_config, "speculative_config", None) is not None
        self.verified_otherwise = describe_verification(vllm_config)
        self.mode = model.logprobs_mode
        self.fields = get_server_fields(model)
        self.drawn: tuple[list[int], Sampled | None] = ([], None)
        self.rows: dict[int, FollowedRequest] = {}
        self.batch: FollowedBatch | None = None
        BatchFollower.newest = self

    # ---- as vLLM's logits processor

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests that have left, joined or moved."""
        if batch_update is not None:
            call_or_none("follower of the batch", lambda: self._update_rows(batch_update), self.lose_rows)

    def _update_rows(self, batch_update: BatchUpdate) -> None:
        self.follow_update(batch_update, process_dict_updates, FollowedRequest)
        self.batch = None

    def needs_output(self) -> bool:
        """Return whether a draw needs the output's tokens or their number. With asynchronous scheduling vLLM otherwise
        does not read the last step's tokens before the next draw."""
        return self.drafting or any(needs_output(request.params) for request in self.rows.values())

    # ---- for the draw

    def ready(self, count: int) -> FollowedBatch:
        """Return the batch after its slots got all new tokens. count: vLLM's number of rows.

        Raises:
            LeftToVllmError: a slot needs a token that vLLM does not know yet, or the batch has another number of rows.
        """
        if self.batch is None:
            self.rows = {row: one for row, one in self.rows.items() if row < count or one.refusal != LOST}
            self.batch = self._collect_batch()
        if len(self.rows) != count:
            raise LeftToVllmError(f"{count} rows for a batch of {len(self.rows)} requests")
        for request in () if self.batch.greedy and not self.drafting else self.batch.requests:
            if self.drafting and request.output[-1:] == [PLACEHOLDER]:
                raise LeftToVllmError(NOT_COUNTED)
            if request.reads and len(request.output) != request.known:
                self._sync_output(request)
        return self.batch

    def _collect_batch(self) -> FollowedBatch:
        rows = sorted(self.rows.items())
        for _, request in rows:
            if request.slot < 0 and not request.refusal:
                self._assign_slot(request)
        served = [row for row, request in rows if not request.refusal]
        requests = [self.rows[row] for row in served]
        slots, refusals = [one.slot for one in requests], [one.refusal for _, one in rows if one.refusal]
        greedy = not refusals and all(is_plain_greedy(self.slots[slot]) for slot in slots)
        return FollowedBatch(served, slots, requests, refusals, greedy)

    def _assign_slot(self, request: FollowedRequest) -> None:
        """Give the request a slot, or set the reason why vLLM serves it."""
        params, prompt = request.params, request.prompt
        if prompt is None and not has_own_fields(params):
            request.refusal = "a prompt of embeddings"
        elif params.logprobs is not None and not self.mode.endswith("_logprobs"):
            request.refusal = f"logprobs_mode {self.mode}"
        if request.refusal:
            return
        output = list(request.output) if request.reads or not request.kept else []
        if PLACEHOLDER in output:
            raise LeftToVllmError(NOT_KNOWN)
        slot, size = self.slots.slots.index(None), self.slots.vocab_size
        ids = [id for id in prompt or () if 0 <= id < size]  # an image's placeholder may have no logit
        request.refusal = add_vllm_request(self.slots, slot, params, self.fields, ids, output=output, **request.kept)
        if not request.refusal:
            request.slot, request.known = slot, len(request.output)
            request.reads = self.slots.reads_output(slot)

    def _sync_output(self, request: FollowedRequest) -> None:
        """Bring the slot's output up to vLLM's list."""
        new = request.output[request.known :]
        if PLACEHOLDER in new:
            raise LeftToVllmError(NOT_KNOWN)
        if new:
            self.slots.commit([request.slot], [new])
        else:  # vLLM has taken tokens back: their keys and values could not be loaded
            self.slots.adopt(request.slot, list(request.output))
        request.known = len(request.output)

    # ---- after an error

    def begin_again(self) -> None:
        """Give each request a new slot at the next draw, made of vLLM's own lists.

        It is unknown which tokens the old slots got. A request keeps its key and its methods' state. After a request's
        third error vLLM draws for it.
        """
        for request in self.rows.values():
            if request.slot >= 0 and (entry := self.slots.slots[request.slot]) is not None:
                request.kept = {"key": entry.key, "sequence_state": entry.sequence_state}
            request.slot, request.errors = -1, request.errors + 1
            if request.errors >= MAX_ERRORS and not request.refusal:
                request.refusal = TOO_MANY
        self.slots = Slots(len(self.slots.slots), self.slots.vocab_size, default_keys=self.slots.default_keys)
        self.sampler, self.batch, self.drawn = Sampler(self.slots), None, ([], None)

    def lose_rows(self) -> None:
        """Leave all requests of this batch to vLLM, because it is unknown which request is in which row. Rows that do
        not exist are dropped at the next draw."""
        self.rows = {}
        self.begin_again()
        for row in range(len(self.slots.slots)):
            self.rows[row] = FollowedRequest(SamplingParams(), None, [], refusal=LOST)


def is_plain_greedy(slot: Slot) -> bool:
    """Return whether the slot takes the largest of the model's own logits, and reports nothing."""
    params = slot.params
    reports = params.logprobs is not None or params.return_sampling_mask
    return params.greedy and not (slot.edit_methods or reports or slot.sequence_state.forced)


def needs_output(params: SamplingParams) -> bool:
    """Return whether tailrace's draws for the request need its output, besides those for which vLLM knows it."""
    return params.min_tokens > 0 or any(name in READING for name in params.extra_args or ())


def has_own_fields(params: SamplingParams) -> bool:
    """Return whether the request has fields of tailrace's own."""
    return any(name in OURS for name in params.extra_args or ())


def describe_verification(vllm_config: Any) -> str:
    """Return the server's verification of drafts if tailrace does not replace it, else "".

    The others than REPLACED_RULES do not keep the distribution: synthetic, FLy.
    """
    method = getattr(getattr(vllm_config, "speculative_config", None), "rejection_sample_method", REPLACED_RULES[0])
    return "" if method in REPLACED_RULES else f"the server verifies drafts by the method {method}"


def describe_v2_drafts(vllm_config: Any) -> str:
    """Return why vLLM draws everything on a server with the V2 runner and these drafts; "" if tailrace does."""
    drafts = getattr(vllm_config, "speculative_config", None)
    if drafts is None or not drafts.num_speculative_tokens:
        return ""
    if getattr(drafts, "draft_sample_method", "greedy") != "greedy":
        return "drafts with distributions in vLLM's V2 runner (draft_sample_method)"
    if getattr(drafts, "enable_adaptive_verification", False):
        return "drafts whose number the device decides (enable_adaptive_verification)"
    return describe_verification(vllm_config)


def get_server_fields(model_config: Any) -> dict[str, Any]:
    """Return the fields that the server decides for all requests."""
    return {
        "logprobs_mode": "processed" if model_config.logprobs_mode.startswith("processed") else "raw",
        "return_sampling_mask": getattr(model_config, "return_sampling_mask", False),
    }


def get_key_parts(vllm_config: Any) -> tuple[object, ...]:
    """Return the source of keys for requests without a seed: equal on all ranks of an engine, different per engine."""
    parallel = vllm_config.parallel_config  # each engine of a dense model has rank 0, and another index
    engine = (parallel.data_parallel_rank, getattr(parallel, "data_parallel_index", 0))
    return getattr(vllm_config, "instance_id", ""), vllm_config.model_config.seed, engine
