"""What of vLLM is replaced, and by what."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.worker_base import WorkerBase

import tailrace
from tailrace.errors import ParameterError
from tailrace.integrations.vllm import layout, masks, v2
from tailrace.integrations.vllm.fallbacks import LeftToVllmError, fall_back, log
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import BatchFollower, FollowedBatch
from tailrace.integrations.vllm.translate import READ, own_fields, translated
from tailrace.sampling import Rows, token_for_each
from tailrace.sampling.sampler import Pending

BUILT_IN = (*BUILTIN_LOGITS_PROCESSORS, BatchFollower)
WANTED = {
    "vllm.SamplingParams": READ,
    "vllm.v1.outputs.LogprobsTensors": ("logprob_token_ids", "logprobs", "selected_token_ranks"),
    "vllm.v1.outputs.SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
    "vllm.v1.sample.logits_processor.BatchUpdate": {"removed", "added", "moved"},
    "vllm.v1.sample.logits_processor.build_logitsprocs": ("vllm_config", "device", "is_pin_memory"),
    "vllm.v1.sample.metadata.SamplingMetadata": {"max_num_logprobs", "logprob_token_ids", "logitsprocs"},
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": (
        *("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
    ),
    "vllm.v1.sample.sampler.Sampler.forward": ("self", "logits", "sampling_metadata"),
    "vllm.v1.spec_decode.metadata.SpecDecodeMetadata": {"draft_token_ids", "num_draft_tokens"},
}


def install() -> None:
    """Replace them, once: all, or nothing.

    Raises:
        AttributeError: this vLLM is built differently.
    """
    layout.replace(OURS, WANTED)
    masks.install()


def check_arguments(theirs: Function, params: SamplingParams) -> None:
    """vLLM's checks; then tailrace's of its own fields.

    Raises:
        VLLMValidationError: over HTTP a 400.
    """
    theirs(params)
    try:
        if own_fields(params):
            translated(params)
    except ParameterError as error:
        raise VLLMValidationError(str(error), parameter=error.param) from error


def begin_worker(theirs: Function, worker: WorkerBase, vllm_config: Any, *args: Any, **more: Any) -> None:
    """vLLM's worker, which is about to make its runner: if of V2, that has another sampler."""
    theirs(worker, vllm_config, *args, **more)
    if getattr(vllm_config, "use_v2_model_runner", False):
        v2.install()


def build_logitsprocs(
    theirs: Function, vllm_config: Any, device: torch.device, is_pin_memory: bool, *args: Any, **more: Any
) -> LogitsProcessors:
    """vLLM's logits processors, and one that follows the batch."""
    processors = theirs(vllm_config, device, is_pin_memory, *args, **more)
    if vllm_config.model_config.runner_type != "pooling":
        processors.argmax_invariant.append(BatchFollower(vllm_config, device, is_pin_memory))
        log.info("tailrace %s samples for vLLM in this process, on %s", tailrace.__version__, device)
    return processors


def follower_of(metadata: SamplingMetadata) -> BatchFollower | None:
    """Who follows this batch; None in vLLM's warm-up, which has no requests."""
    return next((one for one in metadata.logitsprocs.argmax_invariant if isinstance(one, BatchFollower)), None)


def check_batch(metadata: SamplingMetadata, mode: str, width: int, known: int) -> None:
    """width: of the logits; known: the model's configuration has so many tokens.

    Raises:
        LeftToVllmError: tailrace can't sample such a batch.
    """
    if width != known:
        raise LeftToVllmError(f"logits of {width} tokens for a model of {known}")
    processors = metadata.logitsprocs
    for one in (*processors.argmax_invariant, *processors.non_argmax_invariant):
        if not isinstance(one, BUILT_IN):
            raise LeftToVllmError(f"a custom logits processor ({type(one).__name__})")
    thinking = getattr(metadata, "thinking_budget_state_holder", None)
    if thinking is not None and thinking.has_tracked_requests():
        raise LeftToVllmError("thinking_token_budget")
    if metadata.max_num_logprobs is not None and not mode.endswith("_logprobs"):
        raise LeftToVllmError(f"logprobs_mode {mode}")


def prepared(metadata: SamplingMetadata, mode: str, vocab_size: int) -> tuple[BatchFollower, FollowedBatch] | None:
    """The follower of the batch, and the batch as it stands; None where vLLM's own sampler serves it all."""
    follower = follower_of(metadata)
    if follower is None or not follower.rows:
        return None
    try:
        check_batch(metadata, mode, vocab_size, follower.slots.vocab_size)
        batch = follower.ready()
    except LeftToVllmError as reason:
        fall_back(str(reason))
        return None
    for reason in batch.refusals:
        fall_back(reason)
    return (follower, batch) if batch.served else None


# ---- Sampler.forward


def sample(
    theirs: Function,
    sampler: Sampler,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    *args: Any,
    **more: Any,
) -> SamplerOutput:
    """A token of each row."""
    if args or more:  # a bonus token, for its own verification of drafts
        return theirs(sampler, logits, sampling_metadata, *args, **more)
    if follower_of(sampling_metadata) is None and BatchFollower.newest is not None:
        BatchFollower.newest.sampler.warm_up({logits.dtype}, logits.device)  # vLLM is about to measure its memory
    found = prepared(sampling_metadata, sampler.logprobs_mode, logits.shape[-1])
    if found is None:
        return theirs(sampler, logits, sampling_metadata)
    follower, batch = found
    own = theirs(sampler, logits.clone(), sampling_metadata) if batch.refusals else None
    rows = Rows.plain(batch.slots, batch.served, batch.positions())
    found = drawn(follower, batch, logits, rows, sampling_metadata.max_num_logprobs)
    return found if own is None else merged(own, batch.served, found)


def drawn(
    follower: BatchFollower, batch: FollowedBatch, logits: torch.Tensor, rows: Rows, top: int | None
) -> SamplerOutput:
    """The draws as vLLM has them. top: how many of the likeliest tokens the batch reports; None: nobody asks."""
    pending = follower.sampler.begin(logits, rows)
    if follower.fields["return_sampling_mask"]:
        follower.drawn = (batch.served, pending.wait())
    ids, without = token_for_each(pending.token_ids, logits, rows.source[rows.start[:-1]].tolist())
    for _ in without:
        fall_back("a row of logits without any token (NaN, infinity, or all of it masked)")
    reports = None if top is None else logprobs_of(pending, ids.clamp(min=0), batch, top)
    return SamplerOutput(ids.to(torch.int32), reports)


def logprobs_of(pending: Pending, ids: torch.Tensor, batch: FollowedBatch, top: int) -> LogprobsTensors:
    """As vLLM has them, of all places of all requests one after the other: the sampled token first, then the likeliest.
    Zeros follow where a request asked for fewer than another: vLLM looks up all ids of a row. ids: int64 [N, W]."""
    shown, values = pending.padded_logprobs([request.params.logprobs for request in batch.requests], top)
    listed = torch.cat([ids[:, :, None], shown[:, :, 1:]], 2).to(torch.int32)
    return LogprobsTensors(listed.flatten(0, 1), values.float().flatten(0, 1), shown[:, :, 0].flatten())


def merged(own: SamplerOutput, served: list[int], found: SamplerOutput) -> SamplerOutput:
    """vLLM's output, with these rows replaced by tailrace's."""
    own.sampled_token_ids[served] = found.sampled_token_ids.to(own.sampled_token_ids.dtype)
    theirs, reports = own.logprobs_tensors, found.logprobs_tensors
    if theirs is not None and reports is not None and theirs.logprobs.dim() == 2 and theirs.logprob_token_ids.numel():
        width = min(theirs.logprobs.shape[1], reports.logprobs.shape[1])
        theirs.logprob_token_ids[served, :width] = reports.logprob_token_ids[:, :width]
        theirs.logprobs[served, :width] = reports.logprobs[:, :width]
        theirs.selected_token_ranks[served] = reports.selected_token_ranks.to(theirs.selected_token_ranks.dtype)
    return own


# ---- RejectionSampler.forward


def verify(
    theirs: Function,
    verifier: RejectionSampler,
    metadata: SpecDecodeMetadata,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
) -> SamplerOutput:
    """Which drafts stand, and the token after them. Requests with a seed are verified by rule exact: they get the
    tokens that they would have got without drafts. The others, where the drafts come with distributions, by rejection:
    more drafts stand, and the distribution is the same."""
    found = None
    if not getattr(verifier, "synthetic_mode", False):
        found = prepared(sampling_metadata, verifier.sampler.logprobs_mode, logits.shape[-1])
    if found is None or found[1].refusals:
        return theirs(verifier, metadata, draft_probs, logits, sampling_metadata)
    follower, batch = found
    counts = metadata.num_draft_tokens
    dense = None if draft_probs is None else draft_probs.split(counts)
    exact = [dense is None or request.params.seed is not None for request in batch.requests]
    rows = Rows.drafted(
        batch.slots,
        batch.positions(),
        [part.tolist() for part in metadata.draft_token_ids.cpu().split(counts)],
        ["exact" if one else "rejection" for one in exact],
        dense,
        trusted=True,  # vLLM's drafter makes them by softmax
    )
    return drawn(follower, batch, logits, rows, sampling_metadata.max_num_logprobs)


OURS: dict[str, Function] = {
    "vllm.SamplingParams._verify_args": check_arguments,
    "vllm.v1.sample.logits_processor.build_logitsprocs": build_logitsprocs,
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": verify,
    "vllm.v1.sample.sampler.Sampler.forward": sample,
    "vllm.v1.worker.gpu_model_runner.build_logitsprocs": build_logitsprocs,
    "vllm.v1.worker.worker_base.WorkerBase.__init__": begin_worker,
}
