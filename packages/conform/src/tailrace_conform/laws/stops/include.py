"""stops.include: include_stop_str_in_output keeps the stop, and nothing behind it."""

from __future__ import annotations

from tailrace_conform.answers import cut_before, stops_of, uncut, with_stops
from tailrace_conform.cases import Case, Finding, SaysNothing, check_repeatable, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    if "include_stop_str_in_output" not in case.body:
        raise SaysNothing("the field is not asked for")
    stops = stops_of(case)
    plain = case.having(include_stop_str_in_output=None)
    whole = await uncut(ctx, plain)
    cut = cut_before(whole, stops)
    if len(stops) != 1 or cut == whole:
        raise SaysNothing("the stop is not in the text")
    wanted = cut + stops[0]
    for stream in (None, True):
        made, said = await sent(ctx, case, stream=stream)
        if said.text == whole:
            raise SaysNothing("no stop cut the text (stops.cut)")
        if said.text != wanted:
            await check_repeatable(ctx, plain.having(stop=None), whole)
            return Finding(f"{quoted(said.text[-40:])}, not {quoted(wanted[-40:])}", (made,), effect=said.text != cut)
    return None


async def check(ctx: LawContext) -> Verdict:
    tried = [case.having(include_stop_str_in_output=True) for case in await with_stops(ctx)]
    return await judged(ctx, tried[: 2 * ctx.budget.cases], judge)


LAW = Law(
    "stops.include",
    "With include_stop_str_in_output the text ends with the stop string, to the character.",
    "Who asks for it parses the text with it: the rest of the last token must not come along.",
    "Stops from a greedy answer with the field, plain and streamed: the text is the answer up to the match's end.",
    "The stop is missing (the field is ignored), cut short, or followed by the rest of its token.",
    check,
    needs=("include_stop_str_in_output", "stop"),
    cost=16,
)
