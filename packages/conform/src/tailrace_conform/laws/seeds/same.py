"""The same seed, the same answer."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Refused
from tailrace_conform.law import Law
from tailrace_conform.seeded import ALL_ALIKE, alone, cause, compared, differ, seeds_of
from tailrace_conform.verdict import Verdict, holds, ignored


async def check(ctx: LawContext) -> Verdict:
    seeds = seeds_of(ctx)
    first, again = await alone(ctx, seeds), await alone(ctx, seeds)
    pairs = list(zip(first, again, strict=True))
    if all(one.said != other.said for one, other in pairs):
        one, other = pairs[0]
        why = cause(one.choice, other.choice)
        return ignored(f"none of {len(seeds)} seeds gives the same answer twice{why}", one.exchange, other.exchange)
    if (verdict := compared(pairs, "the second time")) is not None:
        return verdict
    if not differ(first):
        return ALL_ALIKE
    try:  # 0 is a seed, not the want of one; a server may refuse it
        zero = list(zip(await alone(ctx, [0]), await alone(ctx, [0]), strict=True))
    except Refused:
        return holds(f"{len(seeds)} seeds, each twice; the seed 0 is refused")
    if (verdict := compared(zero, "the second time, with the seed 0")) is not None:
        return verdict
    return holds(f"{len(seeds)} seeds and 0, each twice")


LAW = Law(
    id="seeds.same",
    sentence="A request with a seed has the same answer when it is sent again.",
    why="It is all that a seed is for: a bug can be shown, a test repeated, a result checked.",
    method="Requests at temperature 1 are sent twice, one after the other; one of the seeds is 0, if it is taken.",
    violation="Two answers to the same request differ, as where the seed 0 is taken for none.",
    check=check,
    needs=("seed",),
    cost=6,
)
