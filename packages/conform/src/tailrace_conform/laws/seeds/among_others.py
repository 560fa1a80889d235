"""The same seed gives the same answer among other requests."""

from __future__ import annotations

import asyncio

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.seeded import SeededAnswer, answer, judge_repeats
from tailrace_conform.verdict import Verdict


async def among(ctx: LawContext, seed: int) -> SeededAnswer:
    """Its answer while others run: with seeds and without, with other prompts, lengths and temperatures."""
    others = []
    for at in range(ctx.budget.crowd - 1):
        fields = {
            "prompt": list(PROMPTS.values())[at % len(PROMPTS)],
            "temperature": (1.0, 0.0, 0.7)[at % 3],
            "max_tokens": 12 + at % 30,
        }
        others.append(answer(ctx, seed + at if at % 2 else None, crowded=True, **fields))
    middle = len(others) // 2
    made = await asyncio.gather(*others[:middle], answer(ctx, seed, crowded=True), *others[middle:])
    return made[middle]


async def check(ctx: LawContext) -> Verdict:
    others = ctx.budget.crowd - 1
    how, held = f"among {others} other requests", f"alone and among {others} others"
    return await judge_repeats(ctx, lambda seed: among(ctx, seed), how, held)


LAW = Law(
    id="seeds.among-others",
    sentence="A request with a seed has the same answer alone and among other requests.",
    why="On a busy server there are always others. A seed that holds only on an idle one can't be used.",
    method="Requests at temperature 1 are sent alone, then again while others run: seeded and not, greedy and not, "
    "short and long. Where answers differ, reported logprobs tell whether the noise or the model's numbers changed.",
    violation="The answer is another one under load.",
    check=check,
    needs=("seed",),
    cost=60,
)
