"""stops.not-in-prompt: stops are looked for in the output alone."""

from __future__ import annotations

from tailrace_conform.answers import compared
from tailrace_conform.cases import Case, Finding, asking, judged, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict

PROMPT = "Here is a list of words, and none of them is a colour: sea, stone, hill; "


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made, said = await sent(ctx, case)
    return await compared(ctx, case, made, said.text)


async def check(ctx: LawContext) -> Verdict:
    endpoints = [name for name in ("completions", "chat") if ctx.capabilities.offers(name)]
    fields = {"temperature": 0.0, "max_tokens": 24}
    tried = [asking(one, PROMPT, stop=[stop], **fields) for stop in ("colour: sea", "hill; ") for one in endpoints]
    return await judged(ctx, tried, judge)


LAW = Law(
    "stops.not-in-prompt",
    "A stop string in the prompt stops nothing: it is looked for in the output alone.",
    "Few-shot prompts are full of the stops of their answers.",
    "Stops that stand in the prompt, one at its very end; the text must be the answer without them up to a match.",
    "An empty answer.",
    check,
    needs=("stop",),
    cost=8,
)
