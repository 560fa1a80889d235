"""stops.one-or-list: a stop string and a list with this string have the same effect."""

from __future__ import annotations

from tailrace_conform.answers import stops_of, uncut, with_stops
from tailrace_conform.cases import Case, Finding, SaysNothing, check_repeatable, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    if len(stops_of(case)) != 1:
        raise SaysNothing("not one stop")
    listed = (await sent(ctx, case))[1].text
    made, said = await sent(ctx, case, stop=stops_of(case)[0])
    if said.text == listed:
        if listed == await uncut(ctx, case):
            raise SaysNothing("no stop cut the text (stops.cut)")
        return None
    await check_repeatable(ctx, case, listed)
    return Finding(f"as a text {quoted(said.text[-40:])}, in a list {quoted(listed[-40:])}", (made,))


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, (await with_stops(ctx))[: 2 * ctx.budget.cases], judge)


LAW = Law(
    "stops.one-or-list",
    "stop as a text means the same as a list with that text.",
    "A text that is taken for a list of characters stops at each of them.",
    "The same greedy request with the stop alone and in a list.",
    "Another text, or a refusal of one of the two.",
    check,
    needs=("stop",),
    cost=12,
)
