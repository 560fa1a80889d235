"""structure.streamed-call: a streamed call is the plain call in parts."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.tools import forced_cases, forced_name, forced_problem
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
    wanted = forced_name(case)
    made, said = await sent(ctx, case, stream=True)
    choice = said.choice()
    if choice.finish_reason == "length" or not choice.tool_calls:
        raise SaysNothing("max_tokens cut the answers, or nothing is called")
    seen = index_problem(made) or forced_problem(choice, wanted)
    return Finding(seen, (made,)) if seen else None


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, forced_cases(ctx, temperature=1.0), judge)


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
