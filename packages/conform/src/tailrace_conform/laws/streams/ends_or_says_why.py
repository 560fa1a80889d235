"""streams.ends-or-says-why: a stream ends with a finish reason, or with an error that says why it does not."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, cases, judged
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, NoAnswer, Refused
from tailrace_conform.law import Law
from tailrace_conform.plain import listed
from tailrace_conform.reply import reply
from tailrace_conform.verdict import Verdict


def problem(made: Exchange) -> str | None:
    if any(isinstance(event.parsed, dict) and "error" in event.parsed for event in made.events):
        return None
    choices = reply(made).choices.values()
    open_ones = [one.index for one in choices if not one.ends]
    if made.failure:
        return f"{made.failure} after {len(made.events)} events, without an error"
    if open_ones or not choices:
        return f"the stream ended without a finish_reason (choices {listed(open_ones)}) and without an error"
    return None


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made = await ctx.server.request(case.path, {"model": ctx.server.model, **case.body})
    if made.refused:
        raise Refused(made)
    if made.status != 200:
        raise NoAnswer(made)
    said = problem(made)
    return Finding(said, (made,)) if said else None


async def check(ctx: LawContext) -> Verdict:
    sets = [{"stream": True, "temperature": 1.0, "max_tokens": count} for count in (16, 1, 40)]
    return await judged(ctx, cases(ctx, ["plain", "long"], *sets), judge, alone=False)


LAW = Law(
    "streams.ends-or-says-why",
    "A stream ends with a finish_reason for each choice, or with an event that holds an error.",
    "A stream that merely stops looks like a finished answer: half an answer is stored as a whole one.",
    "Streams of several lengths are read to their end. Closed connections and silence count as well.",
    "The connection closes in the middle, or [DONE] comes without a finish_reason.",
    check,
    needs=("stream",),
    cost=6,
)
