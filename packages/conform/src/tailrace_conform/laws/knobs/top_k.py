"""top_k keeps the k likeliest tokens, and nothing else changes."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_CLEAR_BOUND, NO_LOGPROBS, judged
from tailrace_conform.expected import clear_size, rank_width, truncated
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import source
from tailrace_conform.verdict import Verdict


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    if (size := clear_size(spread, rank_width)) is None:
        return NO_CLEAR_BOUND
    return await judged(ctx, found, {"top_k": size}, truncated(spread, size), SHARE)


LAW = Law(
    id="knobs.top-k",
    sentence="top_k draws from the k likeliest tokens, in proportion.",
    why="Users rely on it to keep unlikely tokens out.",
    method="k is set where the k-th token is clearly likelier than the next. First tokens are drawn with many seeds: "
    "none may lie outside, and inside a sequential test compares counts with the renormalised reported probabilities.",
    violation="The k+1-th token is drawn, or the k-th never comes.",
    check=check,
    needs=("top_k", "logprobs"),
    error_rate=SHARE,
)
