"""streams.incremental: a stream comes in parts."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict

LEAST = 40  # characters; fewer may be a token or two


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    choice = said.choice()
    if len(choice.text) < LEAST:
        raise SaysNothing(f"no answer has {LEAST} characters")
    if len(choice.pieces) == 1:
        return Finding(f"all {len(choice.text)} characters came in one event", (made,), effect=False)
    return None


async def check(ctx: LawContext) -> Verdict:
    fields = {"stream": True, "temperature": 1.0, "max_tokens": 48}
    return await judged(ctx, cases(ctx, ["story", "numbers"], fields), judge)


LAW = Law(
    "streams.incremental",
    "With stream: true the text comes in more than one event.",
    "A chat that shows nothing until the end is why streams exist.",
    "Answers of 48 tokens are streamed and their events with text are counted. No time is measured.",
    "One event holds the whole answer.",
    check,
    needs=("stream",),
    cost=6,
)
