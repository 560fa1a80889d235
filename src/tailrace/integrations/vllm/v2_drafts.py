"""Drafts in vLLM's V2 runner: which of them stand.

tailrace draws a token at each row of logits, with the noise of its position, as without drafts. A draft stands if it is
that token. A draft that its drafter did not draw, but took as the likeliest or from a text, so stands with its
probability, as by the rules rejection and block (sampling/verify.py). Of drawn drafts, which come with distributions,
these rules accept more. vLLM verifies them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from tailrace.kernels.transfer import there

Verified = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # logits, tokens, numbers of tokens


def keep_drafts(
    drawn: torch.Tensor, drafted: torch.Tensor, counts: Sequence[int], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of each request, int64 [N, width], and their numbers, int32 [N].

    Args:
        drawn: int64 [rows], the token of each row. drafted: [rows], the token that the model read there. counts: rows
            per request.
    """
    first = torch.tensor(list(accumulate(counts[:-1], initial=0)))[:, None]
    place = torch.arange(width)
    inside = there(place < torch.tensor(counts)[:, None] - 1, drawn.device)
    at = there((first + place).clamp(max=len(drawn) - 1), drawn.device)
    stands = (drawn[at] == drafted[(at + 1).clamp(max=len(drawn) - 1)]) & inside
    return drawn[at], stands.int().cumprod(1).sum(1, dtype=torch.int32) + 1


def merge_verified(mine: Verified, own: Verified, rows: torch.Tensor, served: Sequence[bool]) -> Verified:
    """Return vLLM's results with tailrace's for the requests that tailrace served. rows: int64, their rows of
    logits."""
    requests = there(torch.tensor([i for i, is_served in enumerate(served) if is_served]), rows.device)
    places = (rows, requests, requests)
    logits, tokens, numbers = (
        theirs.index_copy(0, at, ours.index_select(0, at).to(theirs.dtype))
        for ours, theirs, at in zip(mine, own, places, strict=True)
    )
    return logits, tokens, numbers


class BatchPart(NamedTuple):
    """Requests that follow one another in a batch. first: the first one's first row. counts: rows of each."""

    first: int
    counts: list[int]


def find_part(indices: np.ndarray, batch: np.ndarray, starts: np.ndarray) -> BatchPart:
    """Return where these requests stand in the batch. starts: each request's first row, and the end."""
    place = batch.tolist().index(indices[0])
    found = starts[place : place + len(indices) + 1]
    return BatchPart(int(found[0]), np.diff(found).tolist())
