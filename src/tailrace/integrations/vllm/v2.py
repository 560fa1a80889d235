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
from pkgutil import resolve_name
from typing import Any

import torch

import tailrace
from tailrace.integrations.vllm import layout, v2_drafts, v2_edits, v2_reports
from tailrace.integrations.vllm.fallbacks import call_or_none, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import describe_v2_drafts
from tailrace.integrations.vllm.v2_reports import RowReports
from tailrace.integrations.vllm.v2_requests import V2Requests
from tailrace.integrations.vllm.v2_rows import PlannedRows, edit_planned, force_token, plan_rows
from tailrace.kernels.transfer import there
from tailrace.sampling import Sampler

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
VERIFIER = "vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler"
WANTED_FOR_DRAFTS = {
    f"{VERIFIER}.__call__": ("self", "logits", "input_batch"),
    f"{VERIFIER}._verify": {
        *("logits", "draft_sampled", "pos", "idx_mapping", "idx_mapping_np", "expanded_idx_mapping"),
        *("expanded_local_pos", "seq_lens_upper_bound_np", "verify_draft_sampled"),
    },
}
STEP = "draws of the V2 runner"
ATTRIBUTE = "tailrace_draws"  # of vLLM's sampler
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None}


def install_v2() -> None:
    """Replace the constructor and the call of its sampler once, and its verification of drafts, or log why not."""
    try:
        layout.replace_functions(
            {f"{SAMPLER}.__init__": start_v2_sampler, f"{SAMPLER}.__call__": call_v2_sampler}, WANTED
        )
    except AttributeError as error:
        log.error("tailrace is off, vLLM samples by itself in its V2 runner: %s", error)
        return
    try:
        ours = {f"{VERIFIER}._verify": verify_v2_drafts, f"{VERIFIER}.__call__": call_v2_verifier}
        layout.replace_functions(ours, WANTED_FOR_DRAFTS)
    except AttributeError as error:
        log.error("tailrace leaves drafts in vLLM's V2 runner to vLLM: %s", error)


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


def call_v2_verifier(theirs: Function, verifier: Any, logits: torch.Tensor, batch: Any, *args: Any, **more: Any) -> Any:
    """Return the output of vLLM's verification of drafts, with the logprobs of tailrace's distributions."""
    if (drawn := getattr(verifier.sampler, ATTRIBUTE, None)) is None:
        return theirs(verifier, logits, batch, *args, **more)
    drawn.batch, drawn.reports = batch, []
    output = theirs(verifier, logits, batch, *args, **more)
    call_or_none(STEP, lambda: drawn.add_reports(output))
    return output


def verify_v2_drafts(theirs: Function, verifier: Any, *args: Any, **more: Any) -> Any:
    """Return which drafts of a part of the batch stand."""

    def verify_theirs() -> Any:
        return theirs(verifier, *args, **more)

    if (drawn := getattr(verifier.sampler, ATTRIBUTE, None)) is None:
        return verify_theirs()
    given = call_or_none(STEP, lambda: layout.bind_arguments(theirs, verifier, *args, **more))
    return verify_theirs() if given is None else drawn.verify(verify_theirs, given)


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
    if given["num_speculative_tokens"] > 1 and not hasattr(resolve_name(f"{VERIFIER}._verify"), "theirs"):
        return "drafts in a V2 runner that verifies them otherwise"
    return describe_v2_drafts(given["vllm_config"])


class DrawnRequests:
    """tailrace's draws for the requests of one of vLLM's samplers.

    reports: what the draws of this step report, if they report logprobs. batch: the last one with drafts.
    """

    def __init__(self, theirs: Any, given: dict[str, Any]) -> None:
        self.theirs, self.add_to_theirs, self.theirs_draw = theirs, theirs.add_request, theirs.sample
        self.states, self.processed = theirs.sampling_states, theirs.needs_logits_processing
        self.penalties = theirs.penalties_state
        self.requests = V2Requests(theirs.req_states, given, lambda slots: Sampler(slots))
        self.mode, self.masks = self.requests.mode, self.requests.fields["return_sampling_mask"]
        self.depth = given["num_speculative_tokens"] - 1
        self.reports: list[RowReports] = []
        self.batch: Any = None

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

        self.reports = []
        given = dict(zip(PLACE, place, strict=True))
        planned = call_or_none(STEP, lambda: plan_rows(self.requests, logits, given), self._give_back)
        if planned is None:
            return draw_theirs()
        own = draw_theirs() if planned.others else None
        edited = self.theirs.apply_sampling_params(planned.logits, *place, skip_top_k_top_p=True)
        found = call_or_none(STEP, lambda: self._draw_rows(edited, planned, own), self._give_back)
        if found is not None:
            return found
        return draw_theirs() if own is None else own

    def verify(self, theirs: Function, given: dict[str, Any]) -> Any:
        """Return the edited logits of a part of a batch, and which drafts stand: the tokens of each request, int64
        [N, K + 1], and their numbers. theirs: vLLM's verification. given: its arguments."""
        place = {name: given["draft_sampled" if name == "input_ids" else name] for name in PLACE}

        def plan() -> tuple[PlannedRows, v2_drafts.BatchPart] | None:
            part = v2_drafts.find_part(place["idx_mapping_np"], self.batch.idx_mapping_np, self.batch.cu_num_logits_np)
            planned = plan_rows(self.requests, given["logits"], place, part.counts)
            return planned and (planned, part)

        if (found := call_or_none(STEP, plan, self._give_back)) is None:
            return theirs()
        planned, part = found
        own = theirs() if planned.others else None
        edited = self.theirs.apply_sampling_params(planned.logits, *place.values(), skip_top_k_top_p=True)

        def verify_drawn() -> v2_drafts.Verified:
            ids, logits = self._draw_rows(edited, planned, None, part.first)
            places, drafted = there(planned.rows.source, ids.device), given["verify_draft_sampled"]
            drawn = torch.zeros(len(drafted), dtype=torch.int64, device=ids.device).index_copy(0, places, ids)
            mine = (logits, *v2_drafts.keep_drafts(drawn, drafted, part.counts, self.depth + 1))
            return mine if own is None else v2_drafts.merge_verified(mine, own, places, planned.served)

        verified = call_or_none(STEP, verify_drawn, self._give_back)
        if verified is not None:
            return verified
        return theirs() if own is None else own

    def _draw_rows(
        self,
        edited: torch.Tensor,
        planned: PlannedRows,
        own: tuple[torch.Tensor, torch.Tensor] | None,
        first: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return these rows' tokens, with vLLM's own tokens for the other rows. Then the logits of all rows, without
        the removed ids if a sampling mask is made of them. first: the first row's place in the step."""
        requests, rows, history = self.requests, planned.rows, self.requests.history
        owners, places = rows.owners.tolist(), there(rows.source, edited.device)
        lengths, prompts = rows.position.numpy(), history.prompt_len.np[owners]
        outputs, kept = (lengths - prompts).tolist(), (lengths >= history.prefill_len.np[owners]).tolist()
        edited = edit_planned(requests, edited, planned)
        requests.follow_output(owners, lengths.tolist(), edited.device)
        forced = [force_token(requests, owner, count) for owner, count in zip(owners, outputs, strict=True)]
        edited = requests.stateful.apply(edited, rows)
        pending = requests.sampler.begin(edited, rows)
        ids = pending.token_ids[:, 0].clamp(min=0)
        requests.stateful.learn(ids, [keeps and not given for keeps, given in zip(kept, forced, strict=True)])
        tokens, logits = (ids, edited) if own is None else (own[0].index_copy(0, places, ids.to(own[0].dtype)), own[1])
        if self.masks:
            logits = v2_reports.copy_survivors(logits, edited, pending, places)
        if self.mode == "processed_logprobs":
            counts = [requests.asked[owner].told.logprobs for owner in owners]
            self.reports += v2_reports.make_row_reports(pending, places + first, counts)
        return tokens, logits

    def add_reports(self, output: Any) -> None:
        """Replace vLLM's logprobs of the rows that tailrace has drawn in this step."""
        for reports in self.reports if output.logprobs_tensors is not None else ():
            output.logprobs_tensors = v2_reports.replace_rows(output.logprobs_tensors, reports)
        self.reports = []

    def _give_back(self) -> None:
        """After an error, let vLLM draw for all current requests until they end, with their original parameters."""
        for index, request in self.requests.asked.items():
            self.processed[index] |= self.states.add_request(index, request.told)
            self._tell_penalties(index, {name: getattr(request.told, name) for name in v2_edits.PENALTIES})
        for state in (self.states, self.penalties):
            state.apply_staged_writes()
        self.requests.begin_again()
