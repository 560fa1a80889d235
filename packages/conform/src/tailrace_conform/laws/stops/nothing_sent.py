"""stops.nothing-sent: nothing of a stop is ever sent in a stream."""

from __future__ import annotations

from tailrace_conform.answers import compared, with_stops
from tailrace_conform.cases import Case, Finding, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case, stream=True)
    return await compared(ctx, case, made, said.text)


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, (await with_stops(ctx))[: 4 * ctx.budget.cases], judge)


LAW = Law(
    "stops.nothing-sent",
    "In a stream nothing of a stop string is ever sent, however it is spread over tokens.",
    "What is sent can't be taken back: half a marker appears in the chat.",
    "Stops from a greedy answer, streamed: the joined deltas must be the answer up to the match.",
    "The beginning of the stop is sent with the token before.",
    check,
    needs=("stop", "stream"),
    cost=16,
)
