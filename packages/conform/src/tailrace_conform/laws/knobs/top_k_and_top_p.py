"""top_k and top_p together: top_p takes its share of what top_k has left."""

from __future__ import annotations

from dataclasses import replace

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_CLEAR_BOUND, NO_LOGPROBS, judged
from tailrace_conform.expected import clear_size, edge, kept, middle, neutral, nucleus_size, rank_width
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import Spread, source
from tailrace_conform.verdict import Verdict


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    if (set_to := clear_pair(spread)) is None:
        return NO_CLEAR_BOUND
    top_k, top_p, size = set_to
    law = replace(
        kept(spread, size),
        stated={
            "top_p takes its share of all tokens": kept(spread, min(top_k, nucleus_size(spread.probabilities, top_p))),
            "top_p alone": kept(spread, nucleus_size(spread.probabilities, top_p)),
            "top_k alone": kept(spread, top_k),
            "no effect": neutral(spread),
        },
    )
    return await judged(ctx, found, {"top_k": top_k, "top_p": round(top_p, 6)}, law, SHARE)


def clear_pair(spread: Spread) -> tuple[int, float, int] | None:
    """top_k, top_p and the number of tokens that both keep: another number than top_p of all tokens would keep."""
    for top_k in dict.fromkeys([clear_size(spread, rank_width), *range(4, len(spread.keys))]):
        if top_k is None or rank_width(spread, top_k) <= 2 * spread.tolerance:
            continue
        renormalised = [p / sum(spread.probabilities[:top_k]) for p in spread.probabilities[:top_k]]
        for size in range(2, top_k):
            top_p = middle(renormalised, size)
            whole = min(top_k, nucleus_size(spread.probabilities, top_p))
            if whole > size and edge(renormalised, size, top_p) > 2 * spread.tolerance:
                return top_k, top_p, size
    return None


LAW = Law(
    id="knobs.top-k-and-top-p",
    sentence="With top_k and top_p, top_p is the mass of what top_k has left.",
    why="Without renormalising, top_p means less the smaller top_k is, or nothing at all.",
    method="Both are set so that top_p of the renormalised tokens keeps fewer than top_p of all would. First tokens "
    "are drawn with many seeds.",
    violation="Tokens come that top_p of the renormalised probabilities removes.",
    check=check,
    needs=("top_k", "top_p", "logprobs"),
    error_rate=SHARE,
)
