"""structure.forced-tool: the function that is asked for is called, with arguments that fit."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.tools import forced_cases, forced_name, forced_problem
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    wanted = forced_name(case)
    made, said = await sent(ctx, case)
    choice = said.choice()
    if choice.finish_reason == "length":
        raise SaysNothing("max_tokens cut the answers")
    if not choice.tool_calls:
        return Finding(f"no call, but {quoted(choice.text[:80])}", (made,), effect=False)
    seen = forced_problem(choice, wanted)
    return Finding(seen, (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, forced_cases(ctx, temperature=1.2), judge)


LAW = Law(
    "structure.forced-tool",
    "Where tool_choice names a function, it is called; its arguments parse and fit its parameters.",
    "An agent that has forced a call has no code for an answer in prose.",
    "Two functions with an enum and a boolean; each is forced at temperature 1.2. The call's name, id and arguments "
    "are checked against the schema.",
    "Prose (tool_choice is ignored), another function, arguments that do not parse or lack a field.",
    check,
    needs=("forced_tool", "chat"),
    cost=5,
)
