"""streams.done-last: [DONE] ends a stream."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, send
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made = await send(ctx, case)
    count = sum(event.data == "[DONE]" for event in made.events)
    if any(isinstance(event.parsed, dict) and "error" in event.parsed for event in made.events):
        raise SaysNothing("a stream ended with an error")
    if count != 1 or not made.done:
        last = made.events[-1].data[:80] if made.events else "nothing"
        return Finding(f"[DONE] came {count} times, and the last event is {last}", (made,))
    return None


async def check(ctx: LawContext) -> Verdict:
    sets = [{"stream": True, "max_tokens": 4}]
    if ctx.capabilities.offers("stream_usage"):
        sets.append({"stream": True, "max_tokens": 4, "stream_options": {"include_usage": True}})
    return await judged(ctx, cases(ctx, ["plain"], *sets), judge)


LAW = Law(
    "streams.done-last",
    "The last event of a stream is [DONE], once.",
    "Clients without a read timeout wait for it; others stop at the first and lose what follows.",
    "Streams with and without usage; the last event must be [DONE], and no other may.",
    "No [DONE], two, or usage after it.",
    check,
    needs=("stream",),
)
