"""stops.ends-work: a stop ends the generation, not the text alone."""

from __future__ import annotations

from tailrace_conform.answers import cut_before, stops_of, uncut, with_stops
from tailrace_conform.cases import Case, Finding, SaysNothing, check_repeatable, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict

SPARE = 2  # tokens that a server may have drawn ahead


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    whole = await uncut(ctx, case)
    made, said = await sent(ctx, case)
    if said.text != cut_before(whole, stops_of(case)) or said.text == whole:
        raise SaysNothing("no stop cut the text (stops.cut)")
    count = said.usage.get("completion_tokens") if said.usage else None
    if not isinstance(count, int) or count <= SPARE + 1:
        raise SaysNothing("usage is missing, or the stop came at once")
    before, shorter = await sent(ctx, case, stop=None, max_tokens=count - SPARE - 1)
    if cut_before(shorter.text, stops_of(case)) == shorter.text or said.text not in shorter.text:
        return None
    await check_repeatable(ctx, case, said.text)
    return Finding(f"{count} tokens are counted, but the stop was complete after {count - SPARE - 1}", (made, before))


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, (await with_stops(ctx))[: 2 * ctx.budget.cases], judge)


LAW = Law(
    "stops.ends-work",
    "A stop ends the generation: no tokens are drawn, and billed, after it.",
    "A server that cuts only the text computes to max_tokens, and the caller waits and pays.",
    f"The usage of a stopped answer: {SPARE + 1} tokens fewer, without the stop, must not hold the whole stop yet.",
    "completion_tokens is max_tokens although the text is short.",
    check,
    needs=("stop",),
    cost=16,
)
