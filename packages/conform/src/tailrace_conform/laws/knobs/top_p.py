"""top_p keeps the smallest set of the likeliest tokens whose mass reaches it, and nothing else changes."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_CLEAR_BOUND, NO_LOGPROBS, judged
from tailrace_conform.expected import clear_size, mass_width, middle, truncated
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import source
from tailrace_conform.verdict import Verdict


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    if (size := clear_size(spread, mass_width)) is None:
        return NO_CLEAR_BOUND
    fields = {"top_p": round(middle(spread.probabilities, size), 6)}
    return await judged(ctx, found, fields, truncated(spread, size), SHARE)


LAW = Law(
    id="knobs.top-p",
    sentence="top_p draws from the smallest set of the likeliest tokens whose probabilities reach it, in proportion.",
    why="An off-by-one here is invisible in single answers, and changes all of them.",
    method="top_p is set in the middle of what one token adds to the mass, so rounding can't decide. First tokens are "
    "drawn with many seeds: none may lie outside the set, and inside a sequential test compares counts with the "
    "renormalised reported probabilities.",
    violation="A token outside the set is drawn, or the set's last token never comes.",
    check=check,
    needs=("top_p", "logprobs"),
    error_rate=SHARE,
)
