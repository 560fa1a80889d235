"""What of vLLM is replaced, and by what."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample import logits_processor
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.worker_base import WorkerBase

import tailrace
from tailrace.errors import ParameterError
from tailrace.integrations.vllm import masks, v2
from tailrace.integrations.vllm.fallbacks import fall_back, log
from tailrace.integrations.vllm.requests import BatchFollower, FollowedBatch, NotKnownYetError
from tailrace.integrations.vllm.translate import own_fields, translated
from tailrace.sampling import Rows, token_for_each
from tailrace.sampling.sampler import Pending

BUILT_IN = (*BUILTIN_LOGITS_PROCESSORS, BatchFollower)


def install() -> None:
    """Replace them, once: all, or nothing.

    Raises:
        AttributeError: this vLLM has one of them no more.
    """
    if hasattr(Sampler.forward, "theirs"):
        return
    made = [(where, name, around(getattr(where, name), ours)) for where, name, ours in replacements()]
    for where, name, one in made:
        setattr(where, name, one)


def replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Where, under which name, and by what."""
    return [
        (Sampler, "forward", sample),
        (RejectionSampler, "forward", verify),
        (SamplingParams, "_verify_args", check_arguments),
        (logits_processor, "build_logitsprocs", build_logitsprocs),
        (gpu_model_runner, "build_logitsprocs", build_logitsprocs),
        (WorkerBase, "__init__", begin_worker),
        *masks.replacements(),
    ]


def around(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """`ours`, which is given theirs first."""

    @functools.wraps(theirs)
    def replaced(*args: Any, **more: Any) -> Any:
        return ours(theirs, *args, **more)

    replaced.theirs = theirs  # type: ignore[attr-defined]
    return replaced


def check_arguments(theirs: Callable[..., None], params: SamplingParams) -> None:
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


def begin_worker(theirs: Callable[..., None], worker: WorkerBase, vllm_config: Any, *args: Any, **more: Any) -> None:
    """vLLM's worker, which is about to make its runner: if of V2, that has another sampler."""
    theirs(worker, vllm_config, *args, **more)
    if getattr(vllm_config, "use_v2_model_runner", False):
        v2.install(around)


def build_logitsprocs(theirs: Callable[..., LogitsProcessors], vllm_config: Any, *args: Any, **more: Any) -> Any:
    """vLLM's logits processors, and one that follows the batch."""
    processors = theirs(vllm_config, *args, **more)
    if vllm_config.model_config.runner_type != "pooling":
        device, pinned = (*args, *more.values())[:2]
        processors.argmax_invariant.append(BatchFollower(vllm_config, device, pinned))
        log.info("tailrace %s samples for vLLM in this process, on %s", tailrace.__version__, device)
    return processors


def follower_of(metadata: SamplingMetadata) -> BatchFollower | None:
    """Who follows this batch; None in vLLM's warm-up, which has no requests."""
    return next((one for one in metadata.logitsprocs.argmax_invariant if isinstance(one, BatchFollower)), None)


def why_not(metadata: SamplingMetadata, mode: str, width: int, known: int) -> str:
    """Why vLLM's own sampler must serve the whole batch; "" if it need not. width: of the logits; known: the model's
    configuration has so many tokens."""
    if width != known:
        return f"logits of {width} tokens for a model of {known}"
    processors = metadata.logitsprocs
    for one in (*processors.argmax_invariant, *processors.non_argmax_invariant):
        if not isinstance(one, BUILT_IN):
            return f"a custom logits processor ({type(one).__name__})"
    thinking = getattr(metadata, "thinking_budget_state_holder", None)
    if thinking is not None and thinking.has_tracked_requests():
        return "thinking_token_budget"
    if metadata.max_num_logprobs is not None and mode not in ("raw_logprobs", "processed_logprobs"):
        return f"logprobs_mode {mode}"
    return ""


def prepared(metadata: SamplingMetadata, mode: str, vocab_size: int) -> tuple[BatchFollower, FollowedBatch] | None:
    """The follower of the batch, and the batch as it stands; None where vLLM's own sampler serves it all."""
    follower = follower_of(metadata)
    if follower is None or not follower.rows:
        return None
    if reason := why_not(metadata, mode, vocab_size, follower.slots.vocab_size):
        fall_back(reason)
        return None
    try:
        batch = follower.ready()
    except NotKnownYetError:
        fall_back("tokens that vLLM has not read yet (asynchronous scheduling)")
        return None
    for reason in batch.refusals:
        fall_back(reason)
    return (follower, batch) if batch.served else None


# ---- Sampler.forward


def sample(
    theirs: Callable[..., SamplerOutput],
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
    shown = ids.new_zeros(*ids.shape, top + 1)
    values = shown.new_zeros(shown.shape, dtype=torch.float32)
    if (arrays := pending.logprob_arrays) is not None:
        own = arrays.ranks.shape[2]  # fewer than top + 1 where vLLM serves who asks for most
        asked = torch.tensor([-1 if (n := one.params.logprobs) is None else n for one in batch.requests])
        places = (torch.arange(own) <= asked[:, None]).to(ids.device, non_blocking=True)
        wanted = (pending.token_ids >= 0)[:, :, None] & places[:, None]
        shown[:, :, :own] = arrays.ranks.where(wanted, 0)
        values[:, :, :own] = arrays.logprobs().where(wanted, 0.0)
    ranks = shown[:, :, 0].flatten()
    listed = torch.cat([ids[:, :, None], shown[:, :, 1:]], 2).to(torch.int32)
    return LogprobsTensors(listed.flatten(0, 1), values.flatten(0, 1), ranks)


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
    theirs: Callable[..., SamplerOutput],
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
