"""The requests that tailrace draws in vLLM's V2 runner, by their index there.

A request keeps its index until it ends or is preempted. Its slot has only what the draw does last: vLLM's own edits,
those of v2_edits.py, and the methods before mirostat and adaptive-p come before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from tailrace.errors import ParameterError
from tailrace.integrations.vllm import translate, v2_edits
from tailrace.integrations.vllm.requests import get_key_parts, get_server_fields
from tailrace.integrations.vllm.translate import NO_EDITS
from tailrace.integrations.vllm.v2_history import read_tokens
from tailrace.integrations.vllm.v2_stateful import LISTED, StatefulRequest, StatefulRequests, split_refinements
from tailrace.params import SamplingParams
from tailrace.sampling import KeySource, Sampler, Slots

FAILED = "requests of a step with an error in tailrace"
BESIDE_DRAFTS = "mirostat, adaptive-p, forced tokens and watermarks beside drafts"
READS = "a field that reads the output, which stays on the device in vLLM's V2 runner"


class DrawnRequest(NamedTuple):
    """A request that tailrace draws.

    - told: its parameters in vLLM, of which vLLM's sampler gets neutral values.
    - params: the same as tailrace's.
    - edits: those that vLLM leaves to tailrace (v2_edits.list_edits).
    """

    told: Any
    params: SamplingParams
    edits: frozenset[str]


class V2Requests:
    """The requests of one of vLLM's samplers.

    - history: vLLM's own states of requests.
    - fields: what the slots have instead of what the requests ask for.
    - refusals: why vLLM draws for a request itself. asked: the other requests.
    - stateful: those with mirostat or adaptive-p.
    - drafting: the server has drafts, so that the host does not know the lengths.
    """

    def __init__(self, history: Any, given: dict[str, Any], make_sampler: Callable[[Slots], Sampler]) -> None:
        keys = KeySource.shared(*get_key_parts(given["vllm_config"]))
        model = given["vllm_config"].model_config
        self.history, self.mode, self.make_sampler = history, model.logprobs_mode, make_sampler
        self.fields = NO_EDITS | v2_edits.NEUTRAL | {"forced_token_ids": ()} | get_server_fields(model)
        if self.mode == "processed_logprobs":
            del self.fields["logprobs"]
        self.drafting = given["num_speculative_tokens"] > 1
        self.slots = Slots(given["max_num_reqs"], given["vocab_size"], default_keys=keys)
        self.refusals: dict[int, str] = {}
        self.asked: dict[int, DrawnRequest] = {}
        self.begin_again()

    def begin_again(self) -> None:
        """Empty all slots. vLLM draws for the requests that had one."""
        self.refusals |= dict.fromkeys(self.asked, FAILED)
        self.asked.clear()
        self.slots = Slots(len(self.slots.slots), self.slots.vocab_size, default_keys=self.slots.default_keys)
        self.sampler = self.make_sampler(self.slots)
        self.stateful = StatefulRequests(len(self.slots.slots), self.slots.vocab_size, self.sampler.backend)

    def add(self, index: int, told: Any) -> bool:
        """Give the index to a request. Return whether tailrace draws for it."""
        self.refusals[index] = FAILED  # until the request has a slot
        self.asked.pop(index, None)
        self.stateful.remove(index)
        if self.slots.slots[index] is not None:
            self.slots.remove(index)
        self.refusals[index] = self._fill_slot(index, told)
        if not self.refusals[index]:
            del self.refusals[index]
        return index in self.asked

    def _fill_slot(self, index: int, told: Any) -> str:
        """Give the request its slot. Return why vLLM must draw for it, or ""."""
        if told.logprobs is not None and self.mode == "processed_logits":
            return f"logprobs_mode {self.mode}"
        if lacking := translate.name_lacking(told):
            return lacking
        try:
            params = translate.translate_params(told, told.bad_words_token_ids or ())
        except ParameterError as error:
            return str(error)
        split = split_refinements(params)
        if self.drafting and (split or params.forced_token_ids or params.watermark is not None):
            return BESIDE_DRAFTS
        follows = params.watermark is not None and params.watermark.kind == "synthid"
        fields = self.fields | (split.tail if split else {}) | ({"watermark": params.watermark} if follows else {})
        if split and self.fields["return_sampling_mask"] and "top_k" in split.tail:
            fields["top_k"] = self.slots.vocab_size  # cuts nothing, but a mask has to have a method that cuts
        if refusal := translate.add_vllm_request(self.slots, index, told, fields, prompt=()):
            return refusal
        if self.slots.reads_output(index) and not follows:
            return READS
        if split:
            resumed = self.history.prefill_len.np[index] > self.history.prompt_len.np[index]
            front = msgspec.structs.replace(params, **{**self.fields, **split.front, **LISTED})
            name = self.history.index_to_req_id[index]
            request = StatefulRequest(name, params, split.learner, split.begin)
            self.stateful.forget(self.history.req_id_to_index)
            self.stateful.add(index, request, front, self.slots[index], bool(resumed))
        self.asked[index] = DrawnRequest(told, params, v2_edits.list_edits(params))
        return ""

    def follow_output(self, owners: Sequence[int], lengths: Sequence[int], device: torch.device) -> None:
        """Tell the slots that read their tokens all tokens so far. It waits for the device if there is such a slot.

        Args:
            owners: the slots of a step. lengths: of their texts.
        """
        reading = [(owner, length) for owner, length in zip(owners, lengths, strict=True) if self._follows(owner)]
        if not reading:
            return
        indices = [owner for owner, _ in reading]
        read = read_tokens(self.history, indices, max(length for _, length in reading), self.slots.vocab_size, device)
        for row, index in enumerate(indices):
            entry, (prompt, output) = self.slots[index], read.read_text(row)
            self.slots.remove(index)
            given: dict[str, Any] = {"key": entry.key, "eos_token_ids": entry.eos_token_ids}
            self.slots.add(index, entry.params, prompt=prompt, output=output, **given)

    def _follows(self, index: int) -> bool:
        """Return whether the slot reads its tokens."""
        return self.slots[index].history is not None
