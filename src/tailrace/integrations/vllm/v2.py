"""vLLM's V2 runner: its edits, tailrace's draw.

In this runner tokens stay on the device, and a request keeps its index, so no batch is followed. vLLM's own kernels
apply bias, penalties, bad words, custom processors and thinking budgets. None of these sorts. tailrace does all later
steps. For a request that tailrace draws, vLLM therefore gets neutral values of the later fields.

vLLM makes raw logprobs itself, of the model's logits. Processed logprobs and sampling masks describe tailrace's draws
(v2_reports.py).
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import tailrace
from tailrace.integrations.vllm import layout, translate, v2_history, v2_reports
from tailrace.integrations.vllm.fallbacks import call_or_none, fall_back, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import get_key_parts, get_server_fields
from tailrace.integrations.vllm.translate import NO_EDITS
from tailrace.integrations.vllm.v2_reports import RowReports
from tailrace.sampling import KeySource, Rows, Sampler, Slots

SAMPLER = "vllm.v1.worker.gpu.sample.sampler.Sampler"
PLACE = (
    *("expanded_idx_mapping", "idx_mapping", "idx_mapping_np", "pos", "input_ids"),
    *("expanded_local_pos", "seq_lens_upper_bound_np"),
)
WANTED = {
    f"{SAMPLER}.__init__": {"vllm_config", "max_num_reqs", "vocab_size", "device", "num_speculative_tokens"},
    f"{SAMPLER}.add_request": ("self", "req_idx", "sampling_params"),
    f"{SAMPLER}.apply_sampling_params": ("self", "logits", *PLACE, "skip_top_k_top_p"),
    f"{SAMPLER}.sample": ("self", "logits", *PLACE, "return_logprobs"),
    f"{SAMPLER}.__call__": ("self", "logits", "input_batch"),
    "vllm.v1.worker.gpu.sample.states.SamplingStates": {"add_request", "apply_staged_writes"},
}
FAILED, STEP = "requests of a step with an error in tailrace", "draws of the V2 runner"
ATTRIBUTE = "tailrace_draws"  # of vLLM's sampler
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None}


def install_v2() -> None:
    """Replace the constructor and the call of its sampler once, or log why not."""
    try:
        layout.replace_functions(
            {f"{SAMPLER}.__init__": start_v2_sampler, f"{SAMPLER}.__call__": call_v2_sampler}, WANTED
        )
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself in its V2 runner: %s", error)


def start_v2_sampler(theirs: Function, sampler: Any, *args: Any, **more: Any) -> None:
    """Make vLLM's sampler and replace its draws, unless the server asks for what tailrace's draws lack."""
    theirs(sampler, *args, **more)
    call_or_none("V2 sampler", lambda: draw_for(sampler, layout.bind_arguments(theirs, sampler, *args, **more)))


def call_v2_sampler(theirs: Function, sampler: Any, *args: Any, **more: Any) -> Any:
    """Return the output of vLLM's sampler, with the logprobs of the distributions that tailrace drew from."""
    output = theirs(sampler, *args, **more)
    if (drawn := getattr(sampler, ATTRIBUTE, None)) is not None:
        call_or_none(STEP, lambda: drawn.add_reports(output))
    return output


def draw_for(sampler: Any, given: dict[str, Any]) -> None:
    """Replace the sampler's draws, unless the server asks for what tailrace's draws lack. given: its arguments."""
    if reason := why_not(sampler, given):
        log.warning("tailrace leaves all draws to vLLM's own sampler: %s", reason)
        return
    try:
        drawn = DrawnRequests(sampler, given)
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself: its V2 sampler is built differently (%s)", error)
        return
    sampler.add_request, sampler.sample = drawn.add_request, drawn.sample
    setattr(sampler, ATTRIBUTE, drawn)
    log.info("tailrace %s samples for vLLM in this process, on %s (V2)", tailrace.__version__, given["device"])


def why_not(sampler: Any, given: dict[str, Any]) -> str:
    """Return why vLLM must draw everything, or "". given: the sampler's arguments."""
    if f"{type(sampler).__module__}.{type(sampler).__name__}" != SAMPLER:
        return f"a sampler that draws otherwise ({type(sampler).__name__})"
    if given["num_speculative_tokens"] > 1:
        return "drafts in the V2 runner"
    return ""


class DrawnRequests:
    """The requests of one of vLLM's samplers, by their index there.

    refusals: why vLLM draws for a request itself. asked: the parameters of the other requests. vLLM gets neutral values
    instead of them. reports: what tailrace's draws of this step report, if they report logprobs.
    without_repeats: the fields of v2_history.py, of the requests that ask for one.
    """

    def __init__(self, theirs: Any, given: dict[str, Any]) -> None:
        self.theirs, self.add_to_theirs, self.theirs_draw = theirs, theirs.add_request, theirs.sample
        self.states, self.processed = theirs.sampling_states, theirs.needs_logits_processing
        keys = KeySource.shared(*get_key_parts(given["vllm_config"]))
        model = given["vllm_config"].model_config
        self.mode, self.fields = model.logprobs_mode, NO_EDITS | v2_history.NEUTRAL | get_server_fields(model)
        if self.mode == "processed_logprobs":
            del self.fields["logprobs"]
        self.slots = Slots(given["max_num_reqs"], given["vocab_size"], default_keys=keys)
        self.sampler = Sampler(self.slots)
        self.refusals: dict[int, str] = {}
        self.asked: dict[int, Any] = {}
        self.without_repeats: dict[int, dict[str, int]] = {}
        self.reports: RowReports | None = None

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """Give the index to this request."""
        self.refusals[req_idx] = FAILED  # until the request has a slot
        self.asked.pop(req_idx, None)
        self.without_repeats.pop(req_idx, None)
        told = call_or_none("requests of the V2 runner", lambda: self._register_request(req_idx, sampling_params))
        self.add_to_theirs(req_idx, sampling_params if told is None else told)

    def _register_request(self, index: int, params: Any) -> Any:
        """Give the request its slot. Return the parameters for vLLM."""
        if self.slots.slots[index] is not None:
            self.slots.remove(index)
        if params.logprobs is not None and self.mode == "processed_logits":
            self.refusals[index] = f"logprobs_mode {self.mode}"
            return params
        refusal = translate.add_vllm_request(self.slots, index, params, self.fields, prompt=())
        if not refusal and self.slots.reads_output(index):
            refusal = "a field that reads the output, which stays on the device in vLLM's V2 runner"
        if refusal:
            self.refusals[index] = refusal
            return params
        every = translate.translate_params(params, ())
        if any((read := {name: getattr(every, name) for name in v2_history.FIELDS}).values()):
            self.without_repeats[index] = read
        neutral = copy.copy(params)
        for name, value in NEUTRAL.items():
            if name != "top_k" or not self.fields["return_sampling_mask"]:  # the width of vLLM's sampling masks
                setattr(neutral, name, value)
        self.asked[index] = params
        del self.refusals[index]
        return neutral

    def sample(
        self, logits: torch.Tensor, *place: Any, return_logprobs: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens, int64 [N], and the edited logits. place: as PLACE. Nothing waits for the device."""

        def draw_theirs() -> tuple[torch.Tensor, torch.Tensor]:
            return self.theirs_draw(logits, *place, return_logprobs=return_logprobs)

        self.reports = None
        planned = call_or_none(
            STEP, lambda: self._plan_rows(logits, dict(zip(PLACE, place, strict=True))), self._give_back
        )
        if planned is None:
            return draw_theirs()
        rows, others = planned
        own = draw_theirs() if others else None
        edited = self.theirs.apply_sampling_params(logits, *place, skip_top_k_top_p=True)
        found = call_or_none(STEP, lambda: self._draw_served(edited, rows, own), self._give_back)
        if found is not None:
            return found
        return draw_theirs() if own is None else own

    def _plan_rows(self, logits: torch.Tensor, place: dict[str, Any]) -> tuple[Rows, bool] | None:
        """Return the rows that tailrace draws, and whether vLLM draws others. None if vLLM draws all rows, for example
        when it measures memory without requests."""
        indices, lengths = place["idx_mapping_np"].tolist(), place["seq_lens_upper_bound_np"].tolist()
        served = [row for row, index in enumerate(indices) if index not in self.refusals]
        if any(self.slots.slots[indices[row]] is None for row in served):
            self.sampler.warm_up({logits.dtype, torch.float32}, logits.device)
            return None
        for index in indices:
            if index in self.refusals:
                fall_back(self.refusals[index])
        rows = Rows.plain([indices[row] for row in served], served, [lengths[row] for row in served])
        return (rows, len(served) < len(indices)) if served else None

    def _draw_served(
        self, edited: torch.Tensor, rows: Rows, own: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return these rows' tokens, with vLLM's own tokens for the other rows. Then the logits of all rows, without
        the removed ids if a sampling mask is made of them."""
        owners, places = rows.owners.tolist(), rows.source.to(edited.device, non_blocking=True)
        if found := [row for row, owner in enumerate(owners) if owner in self.without_repeats]:
            asked = {owners[row]: self.without_repeats[owners[row]] for row in found}
            at = rows.source[found].to(edited.device, non_blocking=True)
            edited = v2_history.ban_repeats(edited, at, self.theirs.req_states, asked, int(rows.position.max()))
        pending = self.sampler.begin(edited, rows)
        ids = pending.token_ids[:, 0].clamp(min=0)
        tokens, logits = (ids, edited) if own is None else (own[0].index_copy(0, places, ids.to(own[0].dtype)), own[1])
        if self.fields["return_sampling_mask"]:
            logits = v2_reports.copy_survivors(logits, edited, pending, places)
        if self.mode == "processed_logprobs":
            counts = [self.asked[owner].logprobs for owner in owners]
            self.reports = v2_reports.make_row_reports(pending, places, counts)
        return tokens, logits

    def add_reports(self, output: Any) -> None:
        """Replace vLLM's logprobs of the rows that tailrace has drawn in this step."""
        if self.reports is not None and output.logprobs_tensors is not None:
            output.logprobs_tensors = v2_reports.replace_rows(output.logprobs_tensors, self.reports)
        self.reports = None

    def _give_back(self) -> None:
        """After an error, let vLLM draw for all current requests until they end, with their original parameters."""
        for index, params in self.asked.items():
            self.refusals[index] = FAILED
            self.processed[index] |= self.states.add_request(index, params)
        self.asked.clear()
        self.states.apply_staged_writes()
        self.slots = Slots(len(self.slots.slots), self.slots.vocab_size, default_keys=self.slots.default_keys)
        self.sampler = Sampler(self.slots)
