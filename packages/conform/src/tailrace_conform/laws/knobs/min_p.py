"""min_p keeps the tokens that have at least this share of the likeliest token's probability."""

from __future__ import annotations

import math
from dataclasses import replace

from tailrace_conform.context import LawContext
from tailrace_conform.counting import NO_CLEAR_BOUND, NO_LOGPROBS, judged
from tailrace_conform.expected import Expectation, clear_size, kept, ratio_width, truncated
from tailrace_conform.law import Law
from tailrace_conform.sequential import SHARE
from tailrace_conform.spread import Spread, source
from tailrace_conform.verdict import Verdict


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    if (spread := found.spread) is None:
        return NO_LOGPROBS
    if (size := clear_size(spread, ratio_width)) is None:
        return NO_CLEAR_BOUND
    given = spread.probabilities
    least = math.sqrt(given[size - 1] * given[size]) / given[0]
    law = truncated(spread, size)
    law = replace(law, stated={**law.stated, "p ≥ min_p, whatever the likeliest has": absolute(spread, least)})
    return await judged(ctx, found, {"min_p": round(least, 6)}, law, SHARE)


def absolute(spread: Spread, least: float) -> Expectation:
    return kept(spread, max(1, sum(p >= least for p in spread.probabilities)))


LAW = Law(
    id="knobs.min-p",
    sentence="min_p draws from the tokens with p ≥ min_p · (the likeliest token's p), in proportion.",
    why="It is the truncation that is recommended for high temperatures; a wrong bound undoes it.",
    method="min_p is set between two tokens. First tokens are drawn with many seeds: none may lie outside, and inside "
    "a sequential test compares counts with the renormalised reported probabilities.",
    violation="A token below the bound is drawn, or one above it never comes.",
    check=check,
    needs=("min_p", "logprobs"),
    error_rate=SHARE,
)
