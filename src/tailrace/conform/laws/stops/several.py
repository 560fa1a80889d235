"""stops.several: of several stops the earliest match counts, in whatever order they are listed."""

from __future__ import annotations

from tailrace.conform.answers import LENGTH, PROMPTS, compared, fits
from tailrace.conform.cases import Case, Finding, cases, judged, sent
from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    return await compared(ctx, case, made, said.text)


def sets_of_stops(ctx: LawContext, text: str) -> list[list[str]]:
    """Later before earlier, side by side in the order of the list reversed, and one a prefix of another."""
    places = [at for at in range(2, len(text) - 8) if fits(text[at : at + 4]) and " " not in text[at : at + 4]]
    if not places:
        return []
    at = ctx.rng.choice(places)
    first = text[at : at + 2]
    later = text[-3:].strip()
    found = [[text[at + 2 : at + 4], first], [first + "\x01", first, text[at : at + 4]]]
    return [*found, [later, first]] if later and later not in text[: at + 2] else found


async def check(ctx: LawContext) -> Verdict:
    tried = []
    for case in cases(ctx, PROMPTS, {"temperature": 0.0, "max_tokens": LENGTH}):
        text = (await sent(ctx, case))[1].text
        tried += [case.having(stop=stops) for stops in sets_of_stops(ctx, text)]
    return await judged(ctx, tried, judge)


LAW = Law(
    "stops.several",
    "Of several stop strings the earliest match in the text counts, in whatever order they are listed.",
    "Where one token completes two stops, a server that searches stop by stop cuts at the one that is listed first.",
    "Pairs of stops from a greedy answer: side by side and listed in reverse, one a prefix of the other, a later one "
    "listed first. The text must end before the earliest.",
    "Text between the two matches is shown.",
    check,
    needs=("stop",),
    cost=16,
)
