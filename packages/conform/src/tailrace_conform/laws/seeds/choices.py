"""A seed with n: the same choices again, in the same order."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.reply import reply
from tailrace_conform.seeded import (
    ALL_ALIKE,
    NOT_REPEATED,
    SeededAnswer,
    answer,
    compared,
    differ,
    repeatable,
    seeds_of,
)
from tailrace_conform.verdict import Verdict, holds

COUNT = 4


async def choices(ctx: LawContext, seed: int) -> list[SeededAnswer]:
    made = (await answer(ctx, seed, n=COUNT)).exchange
    return [SeededAnswer(made, choice) for _, choice in sorted(reply(made).choices.items())]


async def check(ctx: LawContext) -> Verdict:
    if not await repeatable(ctx):
        return NOT_REPEATED
    pairs, seeds = [], seeds_of(ctx)
    for seed in seeds:
        pairs += list(zip(await choices(ctx, seed), await choices(ctx, seed), strict=True))
    if (verdict := compared(pairs, f"with n {COUNT}")) is not None:
        return verdict
    return holds(f"{len(pairs)} choices of {len(seeds)} seeds") if differ([one for one, _ in pairs]) else ALL_ALIKE


LAW = Law(
    id="seeds.choices",
    sentence="A request with a seed and n has the same choices, in the same order, when it is sent again.",
    why="Best-of-n and self-consistency are repeated only if all choices are.",
    method="Requests with n = 4 at temperature 1 are sent twice; the choices are compared by index.",
    violation="A choice is another one.",
    check=check,
    needs=("seed", "n"),
    cost=10,
)
