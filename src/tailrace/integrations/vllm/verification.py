"""vLLM's `RejectionSampler.forward`: which drafts stand, and the token after them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate, takewhile

import torch
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm.custom_processors import Changed, change_logits
from tailrace.integrations.vllm.draws import begin_again, draw_output, follower_of, merge_outputs, prepare_batch
from tailrace.integrations.vllm.fallbacks import call_or_none, fall_back
from tailrace.integrations.vllm.layout import Function
from tailrace.integrations.vllm.requests import PLACEHOLDER, FollowedBatch
from tailrace.request.options import Rule
from tailrace.sampling import Rows

HERE = "verification of drafts"


def verify_drafts(
    theirs: Function,
    verifier: RejectionSampler,
    metadata: SpecDecodeMetadata,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
) -> SamplerOutput:
    """Which drafts stand, and the token after them. Requests with a seed are verified by rule exact: they get the
    tokens that they would have got without drafts. The others, where the drafts come with distributions, by rejection:
    more drafts stand, and the distribution is the same. Drafts of a request that vLLM serves are dropped."""
    counts = metadata.num_draft_tokens
    if call_or_none(HERE, lambda: keep_other_rule(sampling_metadata)):
        return theirs(verifier, metadata, draft_probs, logits, sampling_metadata)

    def prepare_rows() -> FollowedBatch | None:
        return prepare_batch(sampling_metadata, logits.shape[-1], len(counts))

    def draw_rows(batch: FollowedBatch, given: Changed, own: SamplerOutput | None) -> SamplerOutput:
        rows = make_draft_rows(batch, metadata, draft_probs, logits.shape[-1])
        found = draw_output(sampling_metadata, batch, given, rows, 1 + max(counts))
        return found if own is None else merge_outputs(own, batch.served, found)

    after = partial(begin_again, sampling_metadata)
    batch = call_or_none(HERE, prepare_rows, after)
    found = own = None
    given = None
    if batch is not None:
        given = call_or_none(HERE, lambda: change_logits(logits, sampling_metadata, metadata), after)
    if given is None:
        batch, given = None, Changed(logits, sampling_metadata, None)
    if batch is not None and batch.refusals:
        own = sample_without_drafts(verifier, counts, given)
    if batch is not None and (own is not None or not batch.refusals):
        found = call_or_none(HERE, lambda: draw_rows(batch, given, own), after)
    if found is None and own is None and call_or_none(HERE, lambda: must_drop_drafts(logits, sampling_metadata)):
        own = sample_without_drafts(verifier, counts, given)
    if found is None and own is None:
        return theirs(verifier, metadata, draft_probs, given.logits, given.metadata)
    return own if found is None else found


def keep_other_rule(metadata: SamplingMetadata) -> bool:
    """Return whether the server verifies drafts by a rule that tailrace does not replace, and count the step then."""
    follower = follower_of(metadata)
    if follower is None or not follower.verified_otherwise:
        return False
    fall_back(follower.verified_otherwise)
    return True


def make_draft_rows(
    batch: FollowedBatch, metadata: SpecDecodeMetadata, draft_probs: torch.Tensor | None, vocab_size: int
) -> Rows:
    """Return the rows that verify the drafts.

    The first id that is no token ends a request's drafts. vLLM writes −1 after the drafter's last token, and from the
    first token that a grammar refuses. An n-gram may also repeat an image's placeholder, which may have no logit.
    Later rows of logits are not read.
    """
    counts = metadata.num_draft_tokens
    listed = [part.tolist() for part in metadata.draft_token_ids.cpu().split(counts)]
    drafts = [list(takewhile(lambda id: 0 <= id < vocab_size, listed[row])) for row in batch.served]
    rules: list[Rule] = ["exact"] * len(drafts)
    dense = None
    if draft_probs is not None:
        rules = ["rejection" if one.params.seed is None else "exact" for one in batch.requests]
        given = draft_probs.split(counts)
        dense = [given[row][: len(ids)] if ids else None for row, ids in zip(batch.served, drafts, strict=True)]
    first = first_rows(counts)
    return Rows.drafted(
        batch.slots,
        batch.positions(),
        drafts,
        rules,
        dense,
        source=[first[row] for row in batch.served],
        trusted=True,  # vLLM's drafter makes them by softmax
    )


def first_rows(counts: list[int]) -> list[int]:
    """Return the first row of logits of each request. counts: drafts per request."""
    return list(accumulate((count + 1 for count in counts[:-1]), initial=0))


def must_drop_drafts(logits: torch.Tensor, metadata: SamplingMetadata) -> bool:
    """Return whether vLLM's own verification of this batch would give wrong tokens.

    It knows no min_p and no logit_bias. For sampled requests its CPU versions of the kernels read uninitialized memory.
    With top-k its engine ends (docs/integrations/vllm.md).
    """
    follower = follower_of(metadata)
    rows = [] if follower is None else list(follower.rows.values())
    if logits.is_cpu and not metadata.all_greedy:
        return bool(rows)
    return any(one.params.logit_bias or one.params.min_p for one in rows)


def sample_without_drafts(verifier: RejectionSampler, counts: list[int], given: Changed) -> SamplerOutput | None:
    """A token of each request by vLLM's own sampler, without its drafts. None after an error in tailrace."""
    first = call_or_none(HERE, lambda: given.logits[first_rows(counts)])
    if first is None:
        return None
    own = verifier.sampler(first, given.metadata, predict_bonus_token=False)  # so named, tailrace passes it on
    return call_or_none(HERE, lambda: pad_output(own, max(counts)))


def pad_output(own: SamplerOutput, behind: int) -> SamplerOutput:
    """One token of each request as vLLM's verification has them, with so many places behind it."""
    reports = own.logprobs_tensors
    if reports is not None:
        parts = (pad(part[:, None], (*(0, 0) * (part.dim() - 1), 0, behind)).flatten(0, 1) for part in reports[:3])
        reports = LogprobsTensors(*parts, *reports[3:])
    return replace(
        own, sampled_token_ids=pad(own.sampled_token_ids, (0, behind), value=PLACEHOLDER), logprobs_tensors=reports
    )
