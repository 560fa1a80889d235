"""A substitute token for rows that can't be sampled, for engines that need a token per request."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def token_for_each(
    token_ids: torch.Tensor, logits: torch.Tensor, source: Sequence[int]
) -> tuple[torch.Tensor, list[int]]:
    """Return a token for each request. A request without a token (its row is NaN, +inf, or nothing but −inf) gets the
    token with its row's largest number. On a GPU it gets token 0, because reading the row would make the host wait.

    Args:
        token_ids: int64 [N, W], padded with −1; not modified.
        logits: [L, V].
        source: each request's first row of logits.

    Returns:
        int64 [N, W], and the requests without a token. On a GPU that list is unknown, so it is empty.
    """
    first = token_ids[:, :1].clamp(min=0)
    without = [] if token_ids.is_cuda else (token_ids[:, 0] < 0).nonzero().squeeze(1).tolist()
    for i in without:
        first[i] = torch.nan_to_num(logits[source[i]].float(), nan=-torch.inf).argmax()
    return torch.cat([first, token_ids[:, 1:]], 1), without
