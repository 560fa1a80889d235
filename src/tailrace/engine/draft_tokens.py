"""The drafts of a step, as they are made and verified."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tailrace.drafting.base import Draft, DraftRequest
from tailrace.engine.sequence import Sequence
from tailrace.request.options import Rule


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Drafts of one sequence for verification in this step.

    - q: float32 [len(tokens), V], the distributions that the tokens were drawn from; None: they are one-hot.
    - num_allowed: how many of the tokens the grammar allows, from the first on. predicted: the request predicts them.
    - forced: almost no other token can follow, so these drafts do not count for the drafter's statistics.
    """

    tokens: list[int]
    q: torch.Tensor | None = None
    rule: Rule = "exact"
    num_allowed: int = 0
    forced: bool = False
    predicted: bool = False

    @property
    def num_rows(self) -> int:
        """The number of rows of logits that verification takes, including the bonus token's."""
        return len(self.tokens) + 1

    def cut(self, count: int) -> DraftTokens:
        """Return the first `count` of these drafts, count ≥ 1."""
        if count == len(self.tokens):
            return self
        q = None if self.q is None else self.q[:count]
        return replace(self, tokens=self.tokens[:count], q=q, num_allowed=min(self.num_allowed, count))


NO_DRAFTS = DraftTokens([])
Drafts = dict[int, DraftTokens]  # by the slot of the sequence


def may_draft(sequence: Sequence, tokens: int) -> bool:
    """Return whether the sequence computes its last token alone, and two more may be sampled."""
    if tokens != 1 or not sequence.is_conditional or sequence.num_output == 0 or sequence.tokens_left < 2:
        return False
    return not sequence.prefilling


def make_draft_request(sequence: Sequence, count: int, rule: Rule) -> DraftRequest:
    """Return the request for the drafts of a sequence."""
    owner, blocks, computed = sequence.request.owner, sequence.blocks, sequence.num_computed
    return DraftRequest(sequence.slot, sequence.tokens, count, rule, blocks, computed, owner.cache_salt, owner.user)


def cut_to_allowed(sequence: Sequence, draft: Draft, rule: Rule) -> DraftTokens:
    """Return the draft, cut at the first token that the grammar does not allow. If drafts are drawn from distributions,
    this token stays: its draw must count, or its replacements would come too often."""
    count = len(draft.tokens) if sequence.constraint is None else sequence.constraint.count_allowed(draft.tokens)
    keep = len(draft.tokens[: count + (draft.q is not None)])
    return DraftTokens(draft.tokens[:keep], None if draft.q is None or not keep else draft.q[:keep], rule, count)
