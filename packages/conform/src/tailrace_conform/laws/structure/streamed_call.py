"""structure.streamed-call: a streamed call is the plain call in parts."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, asking, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.tools import QUESTION, TOOLS, forced, forced_problem
from tailrace_conform.verdict import Verdict


def index_problem(made: Exchange) -> str | None:
    """One call is forced: all its parts have index 0, and its name comes in the first alone."""
    names = 0
    for event in made.events:
        for one in event.parsed.get("choices") or () if isinstance(event.parsed, dict) else ():
            for call in (one.get("delta") or {}).get("tool_calls") or ():
                if call.get("index") != 0:
                    return f"a part of the only call has the index {call.get('index')}"
                names += bool((call.get("function") or {}).get("name"))
    return f"the function's name comes in {names} parts" if names > 1 else None


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    if "tools" not in case.body or "tool_choice" not in case.body:
        raise SaysNothing("no function is forced")
    made, said = await sent(ctx, case, stream=True)
    choice = said.choice()
    if choice.finish_reason == "length" or not choice.tool_calls:
        raise SaysNothing("max_tokens cut the answers, or nothing is called")
    seen = index_problem(made) or forced_problem(choice, case.body["tool_choice"]["function"]["name"])
    return Finding(seen, (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    fields = {"tools": TOOLS, "temperature": 1.0, "max_tokens": 120}
    names = ["find_age", "find_depth"] * ctx.budget.cases
    tried = [asking("chat", QUESTION, tool_choice=forced(name), **fields) for name in names]
    return await judged(ctx, tried[: max(4, ctx.budget.cases)], judge)


LAW = Law(
    "structure.streamed-call",
    "A streamed tool call joins to one call: an index that stays, the name once, arguments that parse and fit.",
    "Clients join arguments by index; a jump makes two broken calls of one.",
    "A forced call is streamed and joined as the official client joins it.",
    "An index that counts the parts, the name in each, a last part that is lost.",
    check,
    needs=("forced_tool", "stream", "chat"),
    cost=5,
)
