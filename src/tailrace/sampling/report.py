"""What a drawn token's log-probability, rank and likeliest rivals were. Only rows that ask pay.

"raw" is log-softmax of the model's own logits; "processed" that of the distribution really drawn from, −inf for what was
removed. A greedy row draws from no distribution; its processed logprobs are those of the edited logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tailrace.sampling.survivors import Survivors


class Logprobs(NamedTuple):
    """Of one token: natural-log probability (−inf if it was forced and could not have been drawn), rank (1 = likeliest; ties to the
    smaller id), and the top n, in that order. entropy, varentropy: of the whole distribution in nats, if asked for."""

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]
    entropy: float | None = None
    varentropy: float | None = None


def describe(survivors: Survivors, token: int, n: int, vocab_size: int, entropies: bool = False) -> Logprobs:
    """Logprobs of `token` within the distribution of `survivors`; where they are fewer than n, the smallest other ids follow."""
    logprobs = survivors.logits.double().log_softmax(0)
    place = int(torch.searchsorted(survivors.ids, token))
    inside = place < survivors.ids.numel() and int(survivors.ids[place]) == token
    if inside:
        mine = survivors.logits[place]
        rank = 1 + int((survivors.logits > mine).sum()) + int((survivors.logits[:place] == mine).sum())
    else:
        rank = survivors.ids.numel() + 1
    ids, values = _top(survivors, logprobs, min(n, survivors.ids.numel()))
    if len(ids) < n:
        present = set(survivors.ids.tolist())
        ids += [i for i in range(vocab_size) if i not in present][: n - len(ids)]
        values += [float("-inf")] * (len(ids) - len(values))
    entropy = varentropy = None
    if entropies:
        p = logprobs.exp()
        entropy = float(-(p * logprobs).sum())
        varentropy = float((p * (logprobs + entropy) ** 2).sum())
    return Logprobs(float(logprobs[place]) if inside else float("-inf"), rank, ids, values, entropy, varentropy)


def _top(survivors: Survivors, logprobs: torch.Tensor, n: int) -> tuple[list[int], list[float]]:
    """The n likeliest, ties to the smaller id."""
    if n == 0:
        return [], []
    boundary = torch.topk(survivors.logits, n).values[-1]
    near = (survivors.logits >= boundary).nonzero().squeeze(1)
    order = near[torch.sort(survivors.logits[near], descending=True, stable=True).indices][:n]
    return survivors.ids[order].tolist(), logprobs[order].tolist()
