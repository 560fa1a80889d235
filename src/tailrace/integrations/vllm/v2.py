"""vLLM's V2 runner: its edits, tailrace's draw.

There tokens stay on the device, and a request keeps its index: no batch is followed. vLLM's own kernels apply bias,
penalties, bad words, custom processors and thinking budgets, none of which sorts; tailrace does all that follows. So
vLLM is told of a request that tailrace draws as of one that asks for none of that.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import tailrace
from tailrace.integrations.vllm import layout, translate
from tailrace.integrations.vllm.fallbacks import fall_back, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import identity
from tailrace.integrations.vllm.translate import NO_EDITS
from tailrace.sampling import KeySource, Rows, Sampler, Slots

SAMPLER = "vllm.v1.worker.gpu.sample.sampler.Sampler"
PLACE = (
    *("expanded_idx_mapping", "idx_mapping", "idx_mapping_np", "pos", "input_ids"),
    *("expanded_local_pos", "seq_lens_upper_bound_np"),
)
OPTIONS = {"logprobs_mode", "num_speculative_tokens", "return_sampling_mask"}
WANTED = {
    f"{SAMPLER}.__init__": {"vllm_config", "max_num_reqs", "vocab_size", "device", *OPTIONS},
    f"{SAMPLER}.add_request": ("self", "req_idx", "sampling_params"),
    f"{SAMPLER}.apply_sampling_params": ("self", "logits", *PLACE, "skip_top_k_top_p"),
    f"{SAMPLER}.sample": ("self", "logits", *PLACE, "return_logprobs"),
}
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None}


def install() -> None:
    """Replace how its sampler is made, once; or say why not."""
    try:
        layout.replace({f"{SAMPLER}.__init__": begin}, WANTED)
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself in its V2 runner: %s", error)


def begin(theirs: Function, sampler: Any, *args: Any, **more: Any) -> None:
    """As vLLM makes one; this one's draws are tailrace's, unless the server asks for what they lack."""
    theirs(sampler, *args, **more)
    given = layout.arguments(theirs, sampler, *args, **more)
    if reason := why_not(sampler, given):
        log.warning("tailrace leaves all draws to vLLM's own sampler: %s", reason)
        return
    try:
        drawn = DrawnRequests(sampler, given)
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself: its V2 sampler is built differently (%s)", error)
        return
    sampler.add_request, sampler.sample = drawn.add_request, drawn.sample
    log.info("tailrace %s samples for vLLM in this process, on %s (V2)", tailrace.__version__, given["device"])


def why_not(sampler: Any, given: dict[str, Any]) -> str:
    """Why vLLM must draw everything; "" if it need not. given: what the sampler was made with."""
    if f"{type(sampler).__module__}.{type(sampler).__name__}" != SAMPLER:
        return f"a sampler that draws otherwise ({type(sampler).__name__})"
    if given["num_speculative_tokens"] > 1:
        return "drafts in the V2 runner"
    if given["return_sampling_mask"] or given["logprobs_mode"].startswith("processed"):
        return "a sampling mask, or processed logprobs, in the V2 runner"
    return ""


class DrawnRequests:
    """The requests of one of vLLM's samplers, by their index there. refusals: why vLLM draws for a request itself."""

    def __init__(self, theirs: Any, given: dict[str, Any]) -> None:
        self.theirs, self.add_to_theirs, self.theirs_draw = theirs, theirs.add_request, theirs.sample
        keys = KeySource.shared(*identity(given["vllm_config"]))
        self.slots = Slots(given["max_num_reqs"], given["vocab_size"], default_keys=keys)
        self.sampler = Sampler(self.slots)
        self.refusals: dict[int, str] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """The index is this request's."""
        self.refusals.pop(req_idx, None)
        if self.slots.slots[req_idx] is not None:
            self.slots.remove(req_idx)
        refusal = translate.add(self.slots, req_idx, sampling_params, NO_EDITS, prompt=())
        if not refusal and self.slots.reads_output(req_idx):
            refusal = "a field that reads the output, which stays on the device in vLLM's V2 runner"
        if refusal:
            self.refusals[req_idx] = refusal
        else:
            sampling_params = copy.copy(sampling_params)
            for name, value in NEUTRAL.items():
                setattr(sampling_params, name, value)
        self.add_to_theirs(req_idx, sampling_params)

    def sample(
        self, logits: torch.Tensor, *place: Any, return_logprobs: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [N] tokens, and the edited logits. place: as PLACE. Nothing waits for the device."""
        by_name = dict(zip(PLACE, place, strict=True))
        indices, lengths = by_name["idx_mapping_np"].tolist(), by_name["seq_lens_upper_bound_np"].tolist()
        served = [row for row, index in enumerate(indices) if index not in self.refusals]
        if any(self.slots.slots[indices[row]] is None for row in served):  # vLLM measures memory, without requests
            self.sampler.warm_up({logits.dtype, torch.float32}, logits.device)
            return self.theirs_draw(logits, *place, return_logprobs=return_logprobs)
        refused = [index for index in indices if index in self.refusals]
        for index in refused:
            fall_back(self.refusals[index])
        own = self.theirs_draw(logits, *place, return_logprobs=return_logprobs) if refused else None
        if own is not None and not served:
            return own
        edited = self.theirs.apply_sampling_params(logits, *place, skip_top_k_top_p=True)
        rows = Rows.plain([indices[row] for row in served], served, [lengths[row] for row in served])
        ids = self.sampler.begin(edited, rows).token_ids[:, 0].clamp(min=0)
        if own is None:
            return ids, edited
        own[0][served] = ids.to(own[0].dtype)
        return own
