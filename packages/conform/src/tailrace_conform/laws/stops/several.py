"""stops.several: of several stops the earliest match counts, in whatever order they are listed."""

from __future__ import annotations

import re

from tailrace_conform.answers import compared, in_turns, long_texts
from tailrace_conform.cases import Case, Finding, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    return await compared(ctx, case, made, said.text)


def sets_of_stops(ctx: LawContext, text: str) -> list[list[str]]:
    """Side by side in a word, which may be one token, and listed in reverse; one a prefix of another; a later one
    listed first."""
    words = [found for found in re.finditer(r"[^\W\d_]{3,}", text) if found.start() > 1]
    found = []
    for word in ctx.rng.sample(words, min(len(words), ctx.budget.cases)):
        found.append([word[0][2], word[0][:2]])
    if words:
        first, last = words[0][0], words[-1][0]
        found += [[first[:2] + "\x01", first[:2], first], [last, first]]
    return found


async def check(ctx: LawContext) -> Verdict:
    found = [[case.having(stop=stops) for stops in sets_of_stops(ctx, text)] for case, text in await long_texts(ctx)]
    return await judged(ctx, in_turns(found)[: 6 * ctx.budget.cases], judge)


LAW = Law(
    "stops.several",
    "Of several stop strings the earliest match in the text counts, in whatever order they are listed.",
    "Where one token completes two stops, a server that searches stop by stop cuts at the one that is listed first.",
    "Stops from a greedy answer: side by side in a word and listed in reverse, one a prefix of another, a later one "
    "listed first. The text must end before the earliest.",
    "Text between the two matches is shown.",
    check,
    needs=("stop",),
    cost=16,
)
