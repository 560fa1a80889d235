"""Log-probability, rank and top alternatives of a drawn token. Only rows that ask for logprobs pay for them.

"raw" is the log-softmax of the model's own logits. "processed" is the logarithm of the distribution that was drawn
from, −inf for removed tokens. A greedy row draws from no distribution; its processed logprobs are those of the edited
logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from tailrace.base.logprobs import TokenLogprobs
from tailrace.kernels.output import KernelOutput, LogprobArrays
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates


def make_token_logprobs(
    candidates: Candidates, token: int, n: int, vocab_size: int, entropies: bool = False, named: tuple[int, ...] = ()
) -> TokenLogprobs:
    """Return the logprobs of `token` in the distribution of `candidates`. If there are fewer than n candidates, the
    smallest other ids follow.

    named: the tokens to list instead of the likeliest.
    """
    logprobs = candidates.logits.double().log_softmax(0)
    place = int(torch.searchsorted(candidates.ids, token))
    inside = place < candidates.ids.numel() and int(candidates.ids[place]) == token
    if inside:
        mine = candidates.logits[place]
        rank = 1 + int((candidates.logits > mine).sum()) + int((candidates.logits[:place] == mine).sum())
    else:
        rank = candidates.ids.numel() + 1
    ids, values = _find_top(candidates, logprobs, min(n, candidates.ids.numel()))
    if named:
        row = torch.full((vocab_size,), -math.inf, dtype=torch.float64)
        row[candidates.ids] = logprobs
        ids, values = list(named), row[list(named)].tolist()
    elif len(ids) < n:
        present = set(candidates.ids.tolist())
        ids += [i for i in range(vocab_size) if i not in present][: n - len(ids)]
        values += [float("-inf")] * (len(ids) - len(values))
    entropy = varentropy = None
    if entropies:
        p = logprobs.exp()
        entropy = float(-(p * logprobs).sum())
        varentropy = float((p * (logprobs + entropy) ** 2).sum())
    return TokenLogprobs(float(logprobs[place]) if inside else float("-inf"), rank, ids, values, entropy, varentropy)


def replace_top_tokens(entry: TokenLogprobs, token: int, row: torch.Tensor, named: tuple[int, ...]) -> TokenLogprobs:
    """Return the entry of a drawn token with the logprobs of the named tokens instead of the likeliest.

    row: float [V], the model's own logits, from which the logprobs are computed.
    """
    known = math.isfinite(entry.logprob)
    norm = float(row[token]) - entry.logprob if known else float(row.double().logsumexp(0))
    return msgspec.structs.replace(entry, top_ids=list(named), top_logprobs=(row[list(named)].double() - norm).tolist())


def entry_of(numbers: list[float], ranks: list[int], top: int | None, entropies: bool) -> TokenLogprobs:
    """Return one token's entry from the kernels' arrays (kernels/output.py)."""
    more = numbers[1:3] if entropies else ()
    if top is None:
        return TokenLogprobs(math.nan, 0, [], [], *more)
    return TokenLogprobs(numbers[0], ranks[0], ranks[1 : 1 + top], numbers[3 : 3 + top], *more)


def write_entries(entries: Sequence[TokenLogprobs], arrays: LogprobArrays, request: int, top: int) -> None:
    """Write one request's entries, on the host, into the kernels' arrays. top: number of alternatives that the request
    reports."""
    for j, entry in enumerate(entries):
        numbers, ranks = arrays.numbers[request, j], arrays.ranks[request, j]
        more = (
            math.nan if entry.entropy is None else entry.entropy,
            math.nan if entry.varentropy is None else entry.varentropy,
        )
        numbers[: 3 + top] = torch.tensor([entry.logprob, *more, *entry.top_logprobs[:top]], dtype=torch.float64)
        ranks[: 1 + top] = torch.tensor([entry.rank, *entry.top_ids[:top]])


def entries_of(output: KernelOutput, asked: Sequence[SamplingParams | None]) -> list[list[TokenLogprobs] | None]:
    """Return for each request one entry per token; None for a request without logprobs. asked: the parameters of the
    requests with logprobs, else None."""
    if output.logprobs is None:
        return [None] * len(asked)
    # Convert whole arrays: a tensor per row would cost more than the sampling.
    numbers, ranks = output.logprobs.numbers.tolist(), output.logprobs.ranks.tolist()
    return [
        params and [entry_of(numbers[i][j], ranks[i][j], params.logprobs, params.report_entropy) for j in range(count)]
        for i, (params, count) in enumerate(zip(asked, output.num_tokens.tolist(), strict=True))
    ]


def _find_top(candidates: Candidates, logprobs: torch.Tensor, n: int) -> tuple[list[int], list[float]]:
    """Return the n likeliest tokens; ties go to the smaller id."""
    if n == 0:
        return [], []
    boundary = torch.topk(candidates.logits, n).values[-1]
    near = (candidates.logits >= boundary).nonzero().squeeze(1)
    order = near[torch.sort(candidates.logits[near], descending=True, stable=True).indices][:n]
    return candidates.ids[order].tolist(), logprobs[order].tolist()
