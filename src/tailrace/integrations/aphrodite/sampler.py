"""Aphrodite's `Sampler.forward` with draws by tailrace, and what follows the requests of its batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from aphrodite.exceptions import APHRODITEValidationError
from aphrodite.v1.outputs import LogprobsTensors, SamplerOutput
from aphrodite.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessor, process_dict_updates

import tailrace
from tailrace.errors import ParameterError
from tailrace.integrations.aphrodite.translate import PLACE, find_lacking, read_own_fields, translate_params
from tailrace.integrations.refusals import check_names, check_served
from tailrace.integrations.v1_engine import RowFollower, has_other_plugins, list_logprobs, merge_outputs
from tailrace.integrations.vllm.layout import Function, replace_functions
from tailrace.sampling import KeySource, Rows, Sampler, Slots, token_for_each

log = logging.getLogger("aphrodite.tailrace")  # below Aphrodite's own logger, whose handlers print it
errors: Counter[str] = Counter()  # steps that Aphrodite's own sampler served after an error in tailrace, by type


@dataclass(slots=True, eq=False)
class AphroditeRequest:
    """A request of the batch. output: Aphrodite's list, which grows. slot: −1 until its first draw."""

    params: Any
    prompt: Sequence[int] | None
    output: list[int]
    slot: int = -1
    known: int = 0
    refusal: str = ""


class AphroditeFollower(RowFollower, LogitsProcessor):
    """What follows Aphrodite's batch."""

    def __init__(self, config: Any, device: torch.device, is_pin_memory: bool) -> None:
        model, parallel = config.model_config, config.parallel_config
        parts = (getattr(config, "instance_id", ""), model.seed, parallel.data_parallel_rank)
        count = config.scheduler_config.max_num_seqs
        self.slots = Slots(count, model.get_vocab_size(), default_keys=KeySource.shared(*parts))
        self.sampler = Sampler(self.slots)
        self.mode = "processed" if model.logprobs_mode.startswith("processed") else "raw"
        self.rows: dict[int, AphroditeRequest] = {}

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that have left, joined or moved."""
        if batch_update is not None:
            self.follow_update(batch_update, process_dict_updates, AphroditeRequest)

    def prepare_rows(self) -> list[int]:
        """Bring the slots up to date. Return the rows that tailrace serves."""
        for _, request in sorted(self.rows.items()):
            if request.slot < 0 and not request.refusal:
                self._assign_slot(request)
            elif request.slot >= 0 and len(request.output) != request.known:
                self.slots.adopt(request.slot, request.output)
            request.known = len(request.output)
        return [row for row, request in sorted(self.rows.items()) if not request.refusal]

    def _assign_slot(self, request: AphroditeRequest) -> None:
        params, size = request.params, self.slots.vocab_size
        request.refusal = "a prompt of embeddings" if request.prompt is None else find_lacking(params)
        if request.refusal:
            return
        slot = self.slots.slots.index(None)
        try:
            asked = translate_params(params, params.bad_words_token_ids or (), logprobs_mode=self.mode)
            prompt = [id for id in request.prompt or () if 0 <= id < size]
            eos_token_ids = sorted(params.all_stop_token_ids)
            self.slots.add(slot, asked, prompt=prompt, output=list(request.output), eos_token_ids=eos_token_ids)
            request.slot = slot
        except ParameterError as error:
            request.refusal = str(error)
            log.warning("Aphrodite's own sampler serves a request: %s", error)

    def begin_again(self) -> None:
        """Give each request a new slot at the next draw, after an error."""
        self.slots = Slots(len(self.slots.slots), self.slots.vocab_size, default_keys=self.slots.default_keys)
        self.sampler = Sampler(self.slots)
        for request in self.rows.values():
            request.slot, request.known = -1, 0


def sample_for_aphrodite(theirs: Function, sampler: Any, logits: torch.Tensor, metadata: Any, *args: Any, **more: Any):
    """Return a token of each row. Aphrodite's own sampler draws the rows that tailrace does not serve, and the whole
    step after an error in tailrace."""
    found = (one for one in metadata.logitsprocs.argmax_invariant if isinstance(one, AphroditeFollower))
    follower = next(found, None)
    if follower is None or args or more or not follower.rows or metadata.max_num_logprobs == -1:
        return theirs(sampler, logits, metadata, *args, **more)
    spare = logits.clone()
    try:
        if len(follower.rows) != len(logits) or logits.shape[1] != follower.slots.vocab_size:
            raise ValueError(f"logits {list(logits.shape)} for {len(follower.rows)} requests")
        served = follower.prepare_rows()
        ours = draw_rows(follower, apply_foreign(metadata, logits), served, metadata.max_num_logprobs)
    except Exception as error:  # whatever it is: the engine would end
        errors[type(error).__name__] += 1
        if errors[type(error).__name__] == 1:
            log.exception("Aphrodite's own sampler draws this step, after an error in tailrace; please report it")
        follower.begin_again()
        return theirs(sampler, spare, metadata)
    if len(served) == len(follower.rows):
        return ours
    return merge_outputs(theirs(sampler, spare, metadata), served, ours)


def apply_foreign(metadata: Any, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits after processors that are neither Aphrodite's own nor tailrace's."""
    processors = metadata.logitsprocs
    for one in (*processors.non_argmax_invariant, *processors.argmax_invariant):
        if not isinstance(one, (*BUILTIN_LOGITS_PROCESSORS, AphroditeFollower)):
            logits = one.apply(logits)
    return logits


def draw_rows(follower: AphroditeFollower, logits: torch.Tensor, served: list[int], top: int | None) -> SamplerOutput:
    """Return the draws of these rows in Aphrodite's form. top: how many of the likeliest tokens the batch reports."""
    requests = [follower.rows[row] for row in served]
    positions = [len(request.prompt or ()) + len(request.output) for request in requests]
    pending = follower.sampler.begin(logits, Rows.plain([request.slot for request in requests], served, positions))
    ids, _ = token_for_each(pending.token_ids, logits, served)
    if top is None:
        return SamplerOutput(ids.to(torch.int32), None)
    report = list_logprobs(pending, ids, [request.params.logprobs for request in requests], top)
    return SamplerOutput(ids.to(torch.int32), LogprobsTensors(*report))


def build_processors(theirs: Function, config: Any, device: torch.device, *args: Any, **more: Any) -> Any:
    """Return Aphrodite's logits processors, and one that follows the batch. Drafts are left to Aphrodite."""
    processors = theirs(config, device, *args, **more)
    if config.model_config.runner_type != "pooling" and config.speculative_config is None:
        processors.argmax_invariant.append(AphroditeFollower(config, device, False))
        log.info("tailrace %s samples for Aphrodite in this process, on %s", tailrace.__version__, device)
    return processors


def keep_outputs(theirs: Function, batch: Any, *args: Any, **more: Any) -> None:
    """Make Aphrodite's batch. Its lists of output tokens are always complete before a draw, also with asynchronous
    scheduling."""
    theirs(batch, *args, **more)
    if any(isinstance(one, AphroditeFollower) for one in batch.logitsprocs.argmax_invariant):
        batch.logitsprocs_need_output_token_ids = True


def check_arguments(theirs: Function, params: Any) -> None:
    """Check Aphrodite's fields, then tailrace's. An error is a 400 over HTTP."""
    theirs(params)
    try:
        if own := read_own_fields(params):
            if lacking := find_lacking(params):
                raise ParameterError(f"{min(own)} can't be had with {lacking}", min(own))
            translate_params(params, ())
    except ParameterError as error:
        raise APHRODITEValidationError(str(error), parameter=error.param) from error


def check_on_server(theirs: Function, params: Any, model_config: Any) -> None:
    """Check a request on this server: Aphrodite's custom logits processors, the names that only these may read, and
    tailrace's token ids and processors."""
    theirs(params, model_config)
    others = bool(model_config.logits_processors or has_other_plugins("aphrodite"))
    try:
        check_names(params.extra_args or (), PLACE, others)
        if read_own_fields(params):
            check_served(translate_params(params, ()), model_config.get_vocab_size())
    except ParameterError as error:
        raise APHRODITEValidationError(str(error), parameter=error.param) from error


def check_drafts(theirs: Function, params: Any, speculative_config: Any) -> None:
    """Check Aphrodite's fields beside drafts. tailrace's do not act there."""
    theirs(params, speculative_config)
    if speculative_config is not None and (own := read_own_fields(params)):
        name = min(own)
        raise APHRODITEValidationError(f"{name} can't be had with speculative decoding", parameter=name)


OURS: dict[str, Function] = {
    "aphrodite.sampling_params.SamplingParams._verify_args": check_arguments,
    "aphrodite.sampling_params.SamplingParams._validate_logits_processors": check_on_server,
    "aphrodite.sampling_params.SamplingParams._validate_spec_decode": check_drafts,
    "aphrodite.v1.sample.sampler.Sampler.forward": sample_for_aphrodite,
    "aphrodite.v1.worker.gpu_input_batch.InputBatch.__init__": keep_outputs,
    "aphrodite.v1.worker.gpu_model_runner.build_logitsprocs": build_processors,
}
READ = {
    "aphrodite.v1.sample.logits_processor.BatchUpdate": {"removed", "added", "moved"},
    "aphrodite.v1.sample.metadata.SamplingMetadata": {"max_num_logprobs", "logitsprocs"},
}


def install_patches() -> None:
    """Replace the functions of OURS once, either all or none.

    Raises:
        AttributeError: this Aphrodite is built differently.
    """
    replace_functions(OURS, READ)
