"""The same seed gives the same answer streamed."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.seeded import ALL_ALIKE, NOT_REPEATED, alone, answer, compared, differ, repeatable, seeds_of
from tailrace_conform.verdict import Verdict, holds


async def check(ctx: LawContext) -> Verdict:
    if not await repeatable(ctx):
        return NOT_REPEATED
    seeds = seeds_of(ctx)
    first = await alone(ctx, seeds)
    pairs = [(one, await answer(ctx, seed, stream=True)) for seed, one in zip(seeds, first, strict=True)]
    if (verdict := compared(pairs, "as a stream")) is not None:
        return verdict
    return holds(f"{len(seeds)} seeds, plain and streamed") if differ(first) else ALL_ALIKE


LAW = Law(
    id="seeds.stream",
    sentence="A request with a seed has the same answer with and without stream.",
    why="What is tried in a script must be what a user sees in the chat.",
    method="Requests at temperature 1 are sent plain, then as streams.",
    violation="The streamed text is another one.",
    check=check,
    needs=("seed", "stream"),
    cost=12,
)
