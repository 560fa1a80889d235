"""stops.finish-reason: "stop" after a stop, "length" at the limit."""

from __future__ import annotations

from tailrace_conform.answers import cut_before, stops_of, uncut, with_stops
from tailrace_conform.cases import Case, Finding, SaysNothing, check_repeatable, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    whole = await uncut(ctx, case)
    made, said = await sent(ctx, case)
    if said.text != cut_before(whole, stops_of(case)) or said.text == whole:
        raise SaysNothing("no stop cut the text (stops.cut)")
    reason = said.choice().finish_reason
    if reason != "stop":
        return Finding(f"finish_reason is {quoted(reason)} where a stop ended the text", (made,))
    count = said.usage.get("completion_tokens") if said.usage else None
    if isinstance(count, int) and count > 1:
        at_once, also = await sent(ctx, case, max_tokens=count)
        if also.text == said.text and also.choice().finish_reason != "stop":
            await check_repeatable(ctx, case.having(stop=None), whole)
            return Finding(
                f"finish_reason is {quoted(also.choice().finish_reason)} where the last token completed the stop",
                (at_once,),
            )
    short, cut = await sent(ctx, case, stop=None, max_tokens=3)
    if cut.choice().finish_reason != "length":
        return Finding(f"finish_reason is {quoted(cut.choice().finish_reason)} after max_tokens", (short,))
    return None


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, (await with_stops(ctx))[: 2 * ctx.budget.cases], judge)


LAW = Law(
    "stops.finish-reason",
    'finish_reason is "stop" where a stop string ended the text, also with the last allowed token, and "length" at '
    "max_tokens.",
    "Programs go on with the answer after one, and ask for the rest after the other.",
    "Stops from a greedy answer; the same with max_tokens at exactly the token that completes the stop; a limit of 3 "
    "tokens without a stop.",
    '"length" after a stop, or "stop" at a limit.',
    check,
    needs=("stop",),
    cost=16,
)
