"""The choices of one seeded request are not the same answer n times."""

from __future__ import annotations

import math

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.laws.seeds.choices import COUNT, choices
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.seeded import seeds_of
from tailrace_conform.sequential import SHARE
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive


def chance(choice: ReplyChoice) -> float:
    """The natural logarithm of how likely it is that an independent draw is this answer, by its reported logprobs."""
    return sum(token.logprob for token in choice.tokens if token.logprob is not None)


async def check(ctx: LawContext) -> Verdict:
    seeds = seeds_of(ctx)
    alike = 0.0  # logarithm of the chance that the choices that are alike are so by chance
    for seed in seeds:
        made = await choices(ctx, seed)
        if len(made) < COUNT:
            return inconclusive(f"{len(made)} choices came, not {COUNT} (streams.n-complete)", made[0].exchange)
        texts = [one.said for one in made]
        if len(set(texts)) > 1:
            return holds(f"{len(set(texts))} of {COUNT} choices differ")
        alike += (COUNT - 1) * chance(made[0].choice)
        if alike < math.log(SHARE):
            said = f"all {COUNT} choices are the same, which has a chance of e^{alike:.0f} by their own logprobs"
            return broken(said, made[0].exchange)
    return inconclusive("all choices are alike, but their logprobs say that this may be chance")


LAW = Law(
    id="seeds.choices-differ",
    sentence="The choices of one request with a seed and n are drawn independently.",
    why="n equal answers cost n times as much as one and are worth as much.",
    method="Requests with a seed and n = 4 at temperature 1. The chance that independent choices are all alike is "
    "known from the reported logprobs of the answer.",
    violation="All choices are the same answer, though it is an unlikely one.",
    check=check,
    needs=("seed", "n", "logprobs"),
    error_rate=SHARE,
)
