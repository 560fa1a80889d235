"""The same seed gives the same answer while a long prompt is read."""

from __future__ import annotations

import asyncio

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.seeded import SeededAnswer, answer, judge_repeats
from tailrace_conform.verdict import Verdict

LATER_S = 0.05  # the long prompt joins while the answer is written


async def joined(ctx: LawContext, seed: int) -> SeededAnswer:
    """Its answer, with long prompts that come at the same time and a little later."""

    async def long(after_s: float) -> None:
        await asyncio.sleep(after_s)
        await answer(ctx, None, crowded=True, prompt=PROMPTS["long"] + str(seed), max_tokens=4)

    made, *_ = await asyncio.gather(answer(ctx, seed, crowded=True), long(0.0), long(LATER_S), long(2 * LATER_S))
    return made


async def check(ctx: LawContext) -> Verdict:
    how = "while long prompts join"
    return await judge_repeats(ctx, lambda seed: joined(ctx, seed), how, f"alone and {how}")


LAW = Law(
    id="seeds.long-prompt",
    sentence="A request with a seed has the same answer while another's long prompt is read.",
    why="Long prompts are read in pieces between the tokens of others; that is where rows and noise get mixed up.",
    method="Requests at temperature 1 are sent alone, then again while requests with long prompts join.",
    violation="The answer is another one.",
    check=check,
    needs=("seed",),
    cost=20,
)
