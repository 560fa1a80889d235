"""structure.tool-choice-none: where no call is wanted, none comes."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, asking, judged, need_text, sent
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Refused
from tailrace_conform.law import Law
from tailrace_conform.tools import QUESTION, TOOLS, call_problem, forced
from tailrace_conform.verdict import Verdict, inconclusive

NAMES = ("find_depth", "find_age")
NEVER_CALLS = inconclusive("nothing is called with tool_choice auto, required or a function's name either")


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    choice = said.choice()
    if case.body.get("tool_choice") == "none":
        if choice.tool_calls:
            return Finding("a call, although tool_choice is none", (made,))
        need_text(choice.text)
        return None
    if choice.finish_reason == "length" or not choice.tool_calls:
        raise SaysNothing("nothing is called with tool_choice auto")
    seen = call_problem(choice, NAMES)
    return Finding(seen, (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    fields = {"tools": TOOLS, "temperature": 1.0, "max_tokens": 60}
    tried = [asking("chat", QUESTION, tool_choice=one, **fields) for one in ("none", "auto") * ctx.budget.cases]
    verdict = await judged(ctx, tried, judge)
    return verdict if verdict.kind != "holds" or await calls(ctx) else NEVER_CALLS


async def calls(ctx: LawContext) -> bool:
    """Whether the server calls functions at all: asked for any, then for a certain one."""
    for choice in ("auto", "required", forced(NAMES[0])):
        case = asking("chat", QUESTION, tools=TOOLS, tool_choice=choice, max_tokens=120)
        try:
            if (await sent(ctx, case))[1].choice().tool_calls:
                return True
        except Refused:
            continue
    return False


LAW = Law(
    "structure.tool-choice-none",
    "With tool_choice none nothing is called; with auto every call names a function that was given and fits it.",
    "The last turn of an agent must be an answer.",
    "The same question with both values of tool_choice; calls are checked against the functions' parameters. "
    "Where a forced function is not called either, nothing is said.",
    "A call in spite of none; a call of a function that does not exist.",
    check,
    needs=("tools", "chat"),
    cost=6,
)
