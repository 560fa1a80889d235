"""The same seed gives the same answer while a long prompt is read."""

from __future__ import annotations

import asyncio

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.seeded import (
    ALL_ALIKE,
    NOT_REPEATED,
    SeededAnswer,
    alone,
    answer,
    compared,
    differ,
    repeatable,
    seeds_of,
)
from tailrace_conform.verdict import Verdict, holds

LATER_S = 0.05  # the long prompt joins while the answer is written


async def joined(ctx: LawContext, seed: int) -> SeededAnswer:
    """Its answer, with long prompts that come at the same time and a little later."""

    async def long(after_s: float) -> None:
        await asyncio.sleep(after_s)
        await answer(ctx, None, crowded=True, prompt=PROMPTS["long"] + str(seed), max_tokens=4)

    made, *_ = await asyncio.gather(answer(ctx, seed, crowded=True), long(0.0), long(LATER_S), long(2 * LATER_S))
    return made


async def check(ctx: LawContext) -> Verdict:
    if not await repeatable(ctx):
        return NOT_REPEATED
    seeds = seeds_of(ctx)
    first = await alone(ctx, seeds)
    pairs = [(one, await joined(ctx, seed)) for seed, one in zip(seeds, first, strict=True)]
    if (verdict := compared(pairs, "while long prompts join")) is not None:
        return verdict
    return holds(f"{len(seeds)} seeds, alone and while long prompts join") if differ(first) else ALL_ALIKE


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
