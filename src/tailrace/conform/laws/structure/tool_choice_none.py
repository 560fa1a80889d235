"""structure.tool-choice-none: where no call is wanted, none comes."""

from __future__ import annotations

from tailrace.conform.cases import Case, Finding, asking, judged, sent
from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.tools import QUESTION, TOOLS, call_problem
from tailrace.conform.verdict import Verdict

NAMES = ("find_depth", "find_age")


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    choice = said.choice()
    if case.body.get("tool_choice") == "none":
        return Finding("a call, although tool_choice is none", (made,)) if choice.tool_calls else None
    seen = call_problem(choice, NAMES) if choice.finish_reason != "length" else None
    return Finding(seen, (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    fields = {"tools": TOOLS, "temperature": 1.0, "max_tokens": 60}
    tried = [asking("chat", QUESTION, tool_choice=one, **fields) for one in ("none", "auto") * ctx.budget.cases]
    return await judged(ctx, tried, judge)


LAW = Law(
    "structure.tool-choice-none",
    "With tool_choice none nothing is called; with auto every call names a function that was given and fits it.",
    "The last turn of an agent must be an answer.",
    "The same question with both values of tool_choice; calls are checked against the functions' parameters.",
    "A call in spite of none; a call of a function that does not exist.",
    check,
    needs=("tools", "chat"),
    cost=6,
)
