"""vLLM's `Sampler.forward`: a token of each request of the batch that tailrace follows.

vLLM's own functions are called outside of what is attempted, and get logits that nobody has changed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from tailrace.integrations.v1_engine import list_logprobs, merge_outputs
from tailrace.integrations.vllm.custom_processors import Changed, change_logits
from tailrace.integrations.vllm.fallbacks import LeftToVllmError, call_or_none, fall_back
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import PLACEHOLDER, BatchFollower, FollowedBatch
from tailrace.kernels import argmax
from tailrace.sampling import Rows, token_for_each


def follower_of(metadata: SamplingMetadata) -> BatchFollower | None:
    """Who follows this batch; None in vLLM's warm-up, which has no requests."""
    return next((one for one in metadata.logitsprocs.argmax_invariant if isinstance(one, BatchFollower)), None)


def prepare_batch(metadata: SamplingMetadata, width: int, count: int) -> FollowedBatch | None:
    """Return the batch as it stands; None where vLLM's own sampler serves it all. width: of the logits. count: its
    rows, as vLLM has them.

    Raises:
        LeftToVllmError: tailrace can't sample such a batch.
    """
    follower = follower_of(metadata)
    if follower is None or not follower.rows:
        return None
    batch = follower.ready(count)
    if width != follower.slots.vocab_size:
        raise LeftToVllmError(f"logits of {width} tokens for a model of {follower.slots.vocab_size}")
    for reason in batch.refusals:
        fall_back(reason)
    return batch if batch.served else None


def begin_again(metadata: SamplingMetadata) -> None:
    """After an error: vLLM draws this step, and the next one begins with new slots."""
    if (follower := follower_of(metadata)) is not None:
        follower.begin_again()


def sample_for_vllm(
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

    def prepare_rows() -> FollowedBatch | None:
        if follower_of(sampling_metadata) is None and BatchFollower.newest is not None:
            BatchFollower.newest.sampler.warm_up({logits.dtype}, logits.device)  # vLLM is about to measure its memory
        return prepare_batch(sampling_metadata, logits.shape[-1], logits.shape[0])

    after = partial(begin_again, sampling_metadata)
    batch = call_or_none("sampler", prepare_rows, after)
    given = batch and call_or_none("sampler", lambda: change_logits(logits, sampling_metadata), after)
    if batch is None or given is None:
        return theirs(sampler, logits, sampling_metadata)
    spare = call_or_none("sampler", given.logits.clone) if batch.refusals else None
    if batch.refusals and spare is None:
        return theirs(sampler, given.logits, given.metadata)
    own = theirs(sampler, spare, given.metadata) if batch.refusals else None
    found = call_or_none("sampler", lambda: draw_rows(sampling_metadata, batch, given, own), after)
    if found is not None:
        return found
    return theirs(sampler, given.logits, given.metadata) if own is None else own


def draw_rows(
    metadata: SamplingMetadata, batch: FollowedBatch, given: Changed, own: SamplerOutput | None
) -> SamplerOutput:
    """Return a token of each served row. own: the output of vLLM's sampler, for the other rows."""
    if batch.greedy and given.raw is None and (found := draw_greedy(given.logits)) is not None:
        return found
    rows = Rows.plain(batch.slots, batch.served, batch.positions())
    found = draw_output(metadata, batch, given, rows, 1)
    return found if own is None else merge_outputs(own, batch.served, found)


def draw_greedy(logits: torch.Tensor) -> SamplerOutput | None:
    """Return the largest logit of each row. None if a row has none; a GPU is not asked, and gives token 0 then."""
    ids, status = argmax(logits)
    if logits.is_cpu and status.any():
        return None
    return SamplerOutput(ids.clamp_(min=0).to(torch.int32).unsqueeze(-1), None)


def draw_output(
    metadata: SamplingMetadata, batch: FollowedBatch, given: Changed, rows: Rows, width: int
) -> SamplerOutput:
    """Return the draws in vLLM's form. width: columns of its tokens; −1 marks a column without a token."""
    logits, top = given.logits, metadata.max_num_logprobs
    follower = follower_of(metadata)
    assert follower is not None
    pending = follower.sampler.begin(logits, rows)
    ids, without = token_for_each(pending.token_ids, logits, rows.source[rows.start[:-1]].tolist())
    for _ in without:
        fall_back("a row of logits without any token (NaN, infinity, or all of it masked)")
    ids = pad(ids, (0, width - ids.shape[1]), value=PLACEHOLDER)
    reports = None
    if top is not None and given.raw is not None and follower.fields["logprobs_mode"] == "raw":
        reports = report_raw(given.raw, ids, rows, top)
    elif top is not None:
        asked = [request.params.logprobs for request in batch.requests]
        reports = LogprobsTensors(*list_logprobs(pending, ids, asked, top))
    output = SamplerOutput(ids.to(torch.int32), reports)
    if follower.fields["return_sampling_mask"]:
        follower.drawn = (batch.served, pending.wait())
    return output


def report_raw(raw: torch.Tensor, ids: torch.Tensor, rows: Rows, top: int) -> LogprobsTensors:
    """Return the logprobs of the model's own logits, which others have changed before the draw.

    Args:
        raw: [L, V]. ids: int64 [N, W], of the drawn tokens; −1 where there is none. top: how many of the likeliest
            tokens the batch reports.
    """
    first = rows.source[rows.start[:-1]].to(raw.device)
    places = (first[:, None] + torch.arange(ids.shape[1], device=raw.device)).clamp(max=raw.shape[0] - 1)
    logprobs = Sampler.compute_logprobs(raw[places.flatten()])
    return Sampler.gather_logprobs(logprobs, top, ids.clamp(min=0).flatten())
