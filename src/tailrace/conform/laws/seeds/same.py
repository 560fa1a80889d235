"""The same seed, the same answer."""

from __future__ import annotations

from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.seeded import ALL_ALIKE, alone, cause, compared, differ, seeds_of
from tailrace.conform.verdict import Verdict, holds, ignored


async def check(ctx: LawContext) -> Verdict:
    seeds = [*seeds_of(ctx), 0]  # 0 is a seed, not the want of one
    first, again = await alone(ctx, seeds), await alone(ctx, seeds)
    pairs = list(zip(first, again, strict=True))
    if all(one.said != other.said for one, other in pairs):
        one, other = pairs[0]
        why = cause(one.choice, other.choice)
        return ignored(f"none of {len(seeds)} seeds gives the same answer twice{why}", one.exchange, other.exchange)
    if (verdict := compared(pairs, "the second time")) is not None:
        return verdict
    return holds(f"{len(seeds)} seeds, each twice") if differ(first) else ALL_ALIKE


LAW = Law(
    id="seeds.same",
    sentence="A request with a seed has the same answer when it is sent again.",
    why="It is all that a seed is for: a bug can be shown, a test repeated, a result checked.",
    method="Requests at temperature 1 are sent twice, one after the other; one of the seeds is 0.",
    violation="Two answers to the same request differ, as where the seed 0 is taken for none.",
    check=check,
    needs=("seed",),
    cost=6,
)
