"""stops.cut: the text ends right before the earliest match."""

from __future__ import annotations

from tailrace_conform.answers import compared, with_stops
from tailrace_conform.cases import Case, Finding, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    return await compared(ctx, case, made, said.text)


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, (await with_stops(ctx))[: 4 * ctx.budget.cases], judge)


LAW = Law(
    "stops.cut",
    "The text ends right before the earliest match of a stop string: inside a token, across tokens, of several bytes.",
    "Agents parse what stands before the stop: one character more, or a token more, and they fail.",
    "A greedy answer is asked for without a stop. Parts of it, 1 to 10 characters long and also wide characters, are "
    "then stops of the same request; the text must be the first answer up to the match.",
    "The rest of the token that holds the stop is shown; the stop's first character stays; the stop is not found.",
    check,
    needs=("stop",),
    cost=16,
)
