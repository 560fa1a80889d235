"""A token for rows that have none, for engines that must have one of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def token_for_each(
    token_ids: torch.Tensor, logits: torch.Tensor, source: Sequence[int]
) -> tuple[torch.Tensor, list[int]]:
    """Where a request has no token (its row is NaN, +inf, or nothing but −inf) it gets the largest number's of its row;
    on a GPU, where to look at it would be to wait for it, token 0.

    Args:
        token_ids: int64 [N, W], −1 where there is none; not modified. logits: [L, V]. source: of
            each request its first row of logits.

    Returns:
        int64 [N, W]; and which requests had none: on a GPU nobody knows.
    """
    first = token_ids[:, :1].clamp(min=0)
    without = [] if token_ids.is_cuda else (token_ids[:, 0] < 0).nonzero().squeeze(1).tolist()
    for i in without:
        first[i] = torch.nan_to_num(logits[source[i]].float(), nan=-torch.inf).argmax()
    return torch.cat([first, token_ids[:, 1:]], 1), without
