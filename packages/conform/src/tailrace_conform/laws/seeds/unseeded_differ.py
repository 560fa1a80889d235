"""Requests without a seed have different answers."""

from __future__ import annotations

import asyncio
import math

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.laws.seeds.choices_differ import chance
from tailrace_conform.seeded import answer
from tailrace_conform.sequential import SHARE
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive


async def check(ctx: LawContext) -> Verdict:
    alike = 0.0
    for _ in range(max(2, ctx.budget.cases)):
        one = await answer(ctx, None)
        others = await asyncio.gather(answer(ctx, None), answer(ctx, None))
        said = {each.said for each in (one, *others)}
        if len(said) == 3:
            return holds("three requests without a seed, two of them at once, have three answers")
        alike += chance(one.choice) * (3 - len(said))
        if alike < math.log(SHARE / 3):  # any of three pairs
            said = f"requests without a seed have the same answer, which has a chance of e^{alike:.0f}"
            return broken(said, one.exchange, others[0].exchange)
    return inconclusive("some answers are alike, but their logprobs say that this may be chance")


LAW = Law(
    id="seeds.unseeded-differ",
    sentence="Requests without a seed are drawn independently, one after the other and at once.",
    why="A fixed hidden seed makes every retry the same failure, and data that is made full of copies.",
    method="The same request is sent without a seed, alone and twice at once. The chance of equal answers is known "
    "from the reported logprobs.",
    violation="Two answers are the same, though unlikely.",
    check=check,
    needs=("temperature", "logprobs"),
    error_rate=SHARE,
)
