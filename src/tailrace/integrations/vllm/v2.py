"""vLLM's V2 runner: its edits, tailrace's draw.

There tokens stay on the device, and a request keeps its index: no batch is followed. vLLM's own kernels apply bias,
penalties, bad words, custom processors and thinking budgets, none of which sorts; tailrace does all that follows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import torch

import tailrace
from tailrace.errors import ParameterError
from tailrace.integrations.vllm.fallbacks import fall_back, log
from tailrace.integrations.vllm.requests import default_seed
from tailrace.integrations.vllm.translate import NO_EDITS, refused, translated
from tailrace.sampling import KeySource, Rows, Sampler, Slots

# what is read of these calls, at its place
DRAW = {1: "logits", 4: "idx_mapping_np", 8: "seq_lens_upper_bound_np", 9: "return_logprobs"}
ADD = {1: "req_idx", 2: "sampling_params"}
READ = ("sampling_states", "needs_logits_processing", "num_speculative_tokens", "return_sampling_mask", "logprobs_mode")
BEGIN = {1: "vllm_config", 2: "max_num_reqs", 3: "vocab_size"}


def install(around: Callable[..., Any]) -> None:
    """Replace what its sampler draws by, once; or say why not."""
    from vllm.v1.worker.gpu.sample.sampler import Sampler as Theirs

    if hasattr(Theirs.sample, "theirs"):
        return
    for name, wanted in (("__init__", BEGIN), ("add_request", ADD), ("sample", DRAW)):
        found = dict(enumerate(inspect.signature(getattr(Theirs, name)).parameters))
        if missing := [argument for place, argument in wanted.items() if found.get(place) != argument]:
            log.error(
                "tailrace is off, vLLM samples by itself: its V2 sampler's %s has no %s", name, ", ".join(missing)
            )
            return
    Theirs.__init__ = around(Theirs.__init__, begin)
    Theirs.add_request = around(Theirs.add_request, add)
    Theirs.sample = around(Theirs.sample, draw)


class DrawnRequests:
    """The requests of one of vLLM's samplers, by their index there. editor: a twin of the sampler, which edits alone.
    refusals: why vLLM draws for a request itself."""

    def __init__(self, theirs: Any, vllm_config: Any, count: int, vocab_size: int) -> None:
        self.slots = Slots(count, vocab_size, default_keys=KeySource(default_seed(vllm_config)))
        self.sampler = Sampler(self.slots)
        self.refusals: dict[int, str] = {}
        self.editor = copy.copy(theirs)
        self.editor.sampling_states = NothingAsked()
        self.editor.needs_logits_processing = theirs.needs_logits_processing.copy()

    def add(self, index: int, params: Any) -> None:
        """The index is this request's."""
        self.refusals.pop(index, None)
        if self.slots.slots[index] is not None:
            self.slots.remove(index)
        if reason := refused(params):
            self.refusals[index] = reason
        try:
            self.slots.add(
                index,
                msgspec.structs.replace(translated(params), **NO_EDITS),
                eos_token_ids=sorted(params.all_stop_token_ids),
                prompt=(),
            )
            if self.slots.reads_output(index):
                raise ParameterError("a field that reads the output, which stays on the device in vLLM's V2 runner")
        except ParameterError as error:
            self.refusals[index] = str(error)

    def why_not(self, theirs: Any, return_logprobs: bool) -> str:
        """Why vLLM must draw for the whole batch; "" if it need not."""
        if theirs.num_speculative_tokens > 1 or theirs.return_sampling_mask:
            return "drafts, or a sampling mask, in the V2 runner"
        processed = return_logprobs and theirs.logprobs_mode.startswith("processed")
        return "processed logprobs in the V2 runner" if processed else ""


class NothingAsked:
    """In the place of vLLM's SamplingStates: what tailrace does itself is not done to the logits."""

    def add_request(self, *_: Any) -> bool:
        return False

    def apply_temperature(self, *_: Any) -> None:
        pass

    apply_min_p = apply_temperature


def begin(theirs: Callable[..., None], sampler: Any, *args: Any, **more: Any) -> None:
    theirs(sampler, *args, **more)
    asked = inspect.signature(theirs).bind(sampler, *args, **more).arguments
    sampler.tailrace = None
    if missing := [name for name in READ if not hasattr(sampler, name)] + ["device"] * ("device" not in asked):
        log.error("tailrace is off, vLLM samples by itself: its V2 sampler has no %s", ", ".join(missing))
        return
    sampler.tailrace = DrawnRequests(sampler, *(asked[name] for name in BEGIN.values()))
    log.info("tailrace %s samples for vLLM in this process, on %s (V2)", tailrace.__version__, asked["device"])


def add(theirs: Callable[..., None], sampler: Any, req_idx: int, sampling_params: Any) -> None:
    """vLLM's processors hear of the request; whether one of them edits is kept apart from what it is sampled by."""
    if sampler.tailrace is None:
        theirs(sampler, req_idx, sampling_params)
        return
    states, drawn = sampler.sampling_states, sampler.tailrace
    sampler.sampling_states = drawn.editor.sampling_states
    try:
        theirs(sampler, req_idx, sampling_params)
    finally:
        sampler.sampling_states = states
    drawn.editor.needs_logits_processing[req_idx] = sampler.needs_logits_processing[req_idx]
    sampler.needs_logits_processing[req_idx] |= states.add_request(req_idx, sampling_params)
    drawn.add(req_idx, sampling_params)


def draw(
    theirs: Callable[..., Any], sampler: Any, logits: torch.Tensor, *where: Any, return_logprobs: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [N] tokens, and the edited logits. Nothing waits for the device."""
    if sampler.tailrace is None:
        return theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    drawn, indices, lengths = sampler.tailrace, where[2].tolist(), where[6].tolist()
    reason = drawn.why_not(sampler, return_logprobs)
    if any(drawn.slots.slots[index] is None and index not in drawn.refusals for index in indices):
        drawn.sampler.warm_up({logits.dtype, torch.float32}, logits.device)  # vLLM measures memory, without requests
        return theirs(sampler, logits, *where, return_logprobs=return_logprobs)
    served = [row for row, index in enumerate(indices) if index not in drawn.refusals]
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
