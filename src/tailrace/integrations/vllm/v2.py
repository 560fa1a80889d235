"""vLLM's V2 runner: its edits, tailrace's draw.

There tokens stay on the device, and a request keeps its index: no batch is followed. vLLM's own kernels apply bias,
penalties, bad words, custom processors and thinking budgets, none of which sorts; tailrace does all that follows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch

import tailrace
from tailrace.integrations.vllm import translate
from tailrace.integrations.vllm.fallbacks import fall_back, log
from tailrace.integrations.vllm.requests import identity
from tailrace.integrations.vllm.translate import NO_EDITS
from tailrace.sampling import KeySource, Rows, Sampler, Slots

# what is read of these calls, at its place
WANTED = {
    "__init__": {1: "vllm_config", 2: "max_num_reqs", 3: "vocab_size", 4: "device"},
    "add_request": {1: "req_idx", 2: "sampling_params"},
    "sample": {1: "logits", 4: "idx_mapping_np", 8: "seq_lens_upper_bound_np", 9: "return_logprobs"},
}


def install(around: Callable[..., Any]) -> None:
    """Replace what its sampler draws by, once; or say why not."""
    try:
        from vllm.v1.worker.gpu.sample.sampler import Sampler as Theirs

        calls = {name: inspect.signature(getattr(Theirs, name)).parameters for name in WANTED}
    except (ImportError, AttributeError) as error:
        log.error("tailrace is off, vLLM samples by itself: its V2 sampler is built differently (%s)", error)
        return
    if hasattr(Theirs.sample, "theirs"):
        return
    for name, wanted in WANTED.items():
        found = dict(enumerate(calls[name]))
        if missing := ", ".join(argument for place, argument in wanted.items() if found.get(place) != argument):
            log.error("tailrace is off, vLLM samples by itself: its V2 sampler's %s has no %s", name, missing)
            return
    Theirs.__init__ = around(Theirs.__init__, begin)
    Theirs.add_request = around(Theirs.add_request, add)
    Theirs.sample = around(Theirs.sample, draw)


class DrawnRequests:
    """The requests of one of vLLM's samplers, by their index there. editor: a twin of the sampler, which edits alone.
    refusals: why vLLM draws for a request itself.

    Raises:
        AttributeError: that sampler is built differently.
    """

    def __init__(self, theirs: Any, vllm_config: Any, count: int, vocab_size: int) -> None:
        self.slots = Slots(count, vocab_size, default_keys=KeySource.shared(*identity(vllm_config)))
        self.sampler = Sampler(self.slots)
        self.refusals: dict[int, str] = {}
        self.editor = copy.copy(theirs)
        self.editor.sampling_states = NothingAsked()
        self.editor.needs_logits_processing = theirs.needs_logits_processing.copy()
        self.never = theirs.num_speculative_tokens > 1 or theirs.return_sampling_mask
        self.processed = theirs.logprobs_mode.startswith("processed")

    def add(self, index: int, params: Any) -> None:
        """The index is this request's."""
        self.refusals.pop(index, None)
        if self.slots.slots[index] is not None:
            self.slots.remove(index)
        refusal = translate.add(self.slots, index, params, NO_EDITS, prompt=())
        if not refusal and self.slots.reads_output(index):
            refusal = "a field that reads the output, which stays on the device in vLLM's V2 runner"
        if refusal:
            self.refusals[index] = refusal

    def why_not(self, return_logprobs: bool) -> str:
        """Why vLLM must draw for the whole batch; "" if it need not."""
        if self.never:
            return "drafts, or a sampling mask, in the V2 runner"
        return "processed logprobs in the V2 runner" if return_logprobs and self.processed else ""


class NothingAsked:
    """In the place of vLLM's SamplingStates: what tailrace does itself is not done to the logits."""

    def add_request(self, *_: Any) -> bool:
        return False

    def apply_temperature(self, *_: Any) -> None:
        pass

    apply_min_p = apply_temperature


def begin(
    theirs: Callable[..., None],
    sampler: Any,
    vllm_config: Any,
    max_num_reqs: int,
    vocab_size: int,
    device: torch.device,
    *args: Any,
    **more: Any,
) -> None:
    """As vLLM makes one. (More than six parameters: vLLM's.)"""
    theirs(sampler, vllm_config, max_num_reqs, vocab_size, device, *args, **more)
    sampler.tailrace = None
    try:
        sampler.tailrace = DrawnRequests(sampler, vllm_config, max_num_reqs, vocab_size)
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself: its V2 sampler is built differently (%s)", error)
        return
    log.info("tailrace %s samples for vLLM in this process, on %s (V2)", tailrace.__version__, device)


def add(theirs: Callable[..., None], sampler: Any, req_idx: int, sampling_params: Any) -> None:
    """vLLM's processors hear of the request; whether one of them edits is kept apart from what it is sampled by."""
    if (drawn := sampler.tailrace) is None:
        theirs(sampler, req_idx, sampling_params)
        return
    theirs(drawn.editor, req_idx, sampling_params)
    edits = drawn.editor.needs_logits_processing[req_idx]
    sampler.needs_logits_processing[req_idx] = sampler.sampling_states.add_request(req_idx, sampling_params) | edits
    drawn.add(req_idx, sampling_params)


def draw(
    theirs: Callable[..., Any], sampler: Any, logits: torch.Tensor, *where: Any, return_logprobs: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [N] tokens, and the edited logits. Nothing waits for the device."""
    if (drawn := sampler.tailrace) is None:
        return theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    indices, lengths = where[2].tolist(), where[6].tolist()
    served = [row for row, index in enumerate(indices) if index not in drawn.refusals]
    if any(drawn.slots.slots[indices[row]] is None for row in served):  # vLLM measures memory, without requests
        drawn.sampler.warm_up({logits.dtype, torch.float32}, logits.device)
        return theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    reason = drawn.why_not(return_logprobs)
    for left in [reason] if reason else [drawn.refusals[index] for index in indices if index in drawn.refusals]:
        fall_back(left)
    if reason or not served:
        return theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    edited = drawn.editor.apply_sampling_params(logits, *where, skip_top_k_top_p=True)
    rows = Rows.plain([indices[row] for row in served], served, [lengths[row] for row in served])
    ids = drawn.sampler.begin(edited, rows).token_ids[:, 0].clamp(min=0)
    if len(served) == len(indices):
        return ids, edited
    own, processed = theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    own[served] = ids.to(own.dtype)
    return own, processed
