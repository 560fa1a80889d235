"""vLLM's V2 runner: its edits, tailrace's draw.

In this runner tokens stay on the device, and a request keeps its index, so no batch is followed. vLLM's own kernels
apply bias, penalties, bad words, custom processors and thinking budgets. None of these sorts. tailrace does all later
steps: the edits that vLLM lacks (v2_edits.py), mirostat and adaptive-p (v2_stateful.py), and the draw. For a request
that tailrace draws, vLLM therefore gets neutral values of the later fields.

vLLM makes raw logprobs itself, of the model's logits. Processed logprobs and sampling masks describe tailrace's draws
(v2_reports.py).
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import tailrace
from tailrace.integrations.vllm import layout, v2_edits, v2_reports
from tailrace.integrations.vllm.fallbacks import call_or_none, fall_back, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.v2_history import read_tokens
from tailrace.integrations.vllm.v2_reports import RowReports
from tailrace.integrations.vllm.v2_requests import V2Requests
from tailrace.kernels.transfer import there
from tailrace.sampling import Rows, Sampler

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
    "vllm.v1.worker.gpu.sample.penalties.PenaltiesState": {"apply_staged_writes"},
}
STEP = "draws of the V2 runner"
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
    """tailrace's draws for the requests of one of vLLM's samplers.

    reports: what the draws of this step report, if they report logprobs.
    """

    def __init__(self, theirs: Any, given: dict[str, Any]) -> None:
        self.theirs, self.add_to_theirs, self.theirs_draw = theirs, theirs.add_request, theirs.sample
        self.states, self.processed = theirs.sampling_states, theirs.needs_logits_processing
        self.penalties = theirs.penalties_state
        self.requests = V2Requests(theirs.req_states, given, lambda slots: Sampler(slots))
        self.mode, self.masks = self.requests.mode, self.requests.fields["return_sampling_mask"]
        self.reports: RowReports | None = None

    # ---- requests

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """Give the index to this request. vLLM gets neutral values of what tailrace does."""
        drawn = call_or_none("requests of the V2 runner", lambda: self.requests.add(req_idx, sampling_params))
        told = copy.copy(sampling_params) if drawn else sampling_params
        for name, value in NEUTRAL.items() if drawn else ():
            if name != "top_k" or not self.masks:  # the width of vLLM's sampling masks
                setattr(told, name, value)
        self.add_to_theirs(req_idx, told)
        if drawn:
            self._tell_penalties(req_idx, v2_edits.NEUTRAL)

    def _tell_penalties(self, index: int, values: Any) -> None:
        """Set the strength of vLLM's own penalties if tailrace penalises for this request. vLLM counts all the same."""
        if "penalties" in self.requests.asked[index].edits:
            for name in v2_edits.PENALTIES:
                getattr(self.penalties, name).np[index] = values[name]

    # ---- draws

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
        rows, others, given = planned
        own = draw_theirs() if others else None
        edited = self.theirs.apply_sampling_params(given, *place, skip_top_k_top_p=True)
        found = call_or_none(STEP, lambda: self._draw_served(edited, rows, own), self._give_back)
        if found is not None:
            return found
        return draw_theirs() if own is None else own

    def _plan_rows(self, logits: torch.Tensor, place: dict[str, Any]) -> tuple[Rows, bool, torch.Tensor] | None:
        """Return the rows that tailrace draws, whether vLLM draws others, and the logits for vLLM's edits. None if vLLM
        draws all rows, for example when it measures memory without requests."""
        indices, lengths = place["idx_mapping_np"].tolist(), place["seq_lens_upper_bound_np"].tolist()
        served = [row for row, index in enumerate(indices) if index not in self.requests.refusals]
        if any(self.requests.slots.slots[indices[row]] is None for row in served):
            self.requests.sampler.warm_up({logits.dtype, torch.float32}, logits.device)
            v2_edits.warm_up(logits.device)
            return None
        for index in indices:
            if index in self.requests.refusals:
                fall_back(self.requests.refusals[index])
        if not served:
            return None
        rows = Rows.plain([indices[row] for row in served], served, [lengths[row] for row in served])
        if found := [row for row in served if v2_edits.NORMALIZE in self.requests.asked[indices[row]].edits]:
            logits = v2_edits.normalize_rows(logits, there(torch.tensor(found), logits.device))
        return rows, len(served) < len(indices), logits

    def _draw_served(
        self, edited: torch.Tensor, rows: Rows, own: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return these rows' tokens, with vLLM's own tokens for the other rows. Then the logits of all rows, without
        the removed ids if a sampling mask is made of them."""
        owners, places = rows.owners.tolist(), there(rows.source, edited.device)
        lengths, prompts = rows.position.numpy(), self.requests.history.prompt_len.np[owners]
        outputs, kept = (lengths - prompts).tolist(), (lengths >= self.requests.history.prefill_len.np[owners]).tolist()
        edited = self._edit_rows(edited, rows, outputs)
        forced = [self._force_token(owner, count) for owner, count in zip(owners, outputs, strict=True)]
        edited = self.requests.stateful.apply(edited, rows)
        pending = self.requests.sampler.begin(edited, rows)
        ids = pending.token_ids[:, 0].clamp(min=0)
        self.requests.stateful.learn(ids, [keeps and not given for keeps, given in zip(kept, forced, strict=True)])
        tokens, logits = (ids, edited) if own is None else (own[0].index_copy(0, places, ids.to(own[0].dtype)), own[1])
        if self.masks:
            logits = v2_reports.copy_survivors(logits, edited, pending, places)
        if self.mode == "processed_logprobs":
            counts = [self.requests.asked[owner].told.logprobs for owner in owners]
            self.reports = v2_reports.make_row_reports(pending, places, counts)
        return tokens, logits

    def _edit_rows(self, edited: torch.Tensor, rows: Rows, outputs: list[int]) -> torch.Tensor:
        """Return the logits after the edits that vLLM leaves to tailrace. outputs: numbers of output tokens."""
        owners, device = rows.owners.tolist(), edited.device
        found = [row for row, owner in enumerate(owners) if self.requests.asked[owner].edits]
        if not found:
            return edited
        indices, longest = [owners[row] for row in found], int(rows.position[found].max())
        read = read_tokens(self.requests.history, indices, longest, self.requests.slots.vocab_size, device)
        enders = [self.requests.slots[index].eos_token_ids for index in indices]
        params = [self.requests.asked[index].params for index in indices]
        mine = v2_edits.EditedRows(params, enders, [outputs[row] for row in found], read)
        return v2_edits.edit_rows(edited, there(rows.source[found], device), mine)

    def _force_token(self, index: int, count: int) -> bool:
        """Let the slot draw the token that its request forces after `count` output tokens. Return whether it forces
        one."""
        tokens = self.requests.asked[index].params.forced_token_ids
        if 0 <= count < len(tokens):
            self.requests.slots.force(index, tokens[count : count + 1])
            return True
        if self.requests.slots[index].sequence_state.forced:
            self.requests.slots[index].sequence_state.forced.clear()
            self.requests.slots.refresh_edits(index)
        return False

    def add_reports(self, output: Any) -> None:
        """Replace vLLM's logprobs of the rows that tailrace has drawn in this step."""
        if self.reports is not None and output.logprobs_tensors is not None:
            output.logprobs_tensors = v2_reports.replace_rows(output.logprobs_tensors, self.reports)
        self.reports = None

    def _give_back(self) -> None:
        """After an error, let vLLM draw for all current requests until they end, with their original parameters."""
        for index, request in self.requests.asked.items():
            self.processed[index] |= self.states.add_request(index, request.told)
            self._tell_penalties(index, {name: getattr(request.told, name) for name in v2_edits.PENALTIES})
        for state in (self.states, self.penalties):
            state.apply_staged_writes()
        self.requests.begin_again()
