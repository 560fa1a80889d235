"""streams.one-ending: each choice ends once, and nothing follows."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, send
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made = await send(ctx, case)
    ended: set[int] = set()
    for event in made.events:
        for one in event.parsed.get("choices") or () if isinstance(event.parsed, dict) else ():
            index = one.get("index", 0)
            delta = one.get("delta") or {}
            if one.get("finish_reason"):
                if index in ended:
                    return Finding(f"choice {index} has more than one finish_reason", (made,))
                ended.add(index)
            elif index in ended and (one.get("text") or delta.get("content") or delta.get("tool_calls")):
                return Finding(f"choice {index} goes on after its finish_reason", (made,))
    if not ended:
        raise SaysNothing("no choice has a finish_reason (streams.ends-or-says-why)")
    return None


async def check(ctx: LawContext) -> Verdict:
    sets = [{"stream": True, "temperature": 1.0, "max_tokens": 4}]
    if ctx.capabilities.offers("n"):
        sets.append({"stream": True, "temperature": 1.0, "max_tokens": 4, "n": 3})
    return await judged(ctx, cases(ctx, ["plain", "numbers"], *sets), judge)


LAW = Law(
    "streams.one-ending",
    "Each choice has exactly one chunk with a finish_reason, and nothing of the choice follows.",
    "Clients act on the finish reason: they run a tool twice, or cut the text that comes after.",
    "Streams with and without n; the chunks with a finish_reason are counted for each choice.",
    "Two finish reasons, or text after one.",
    check,
    needs=("stream",),
)
