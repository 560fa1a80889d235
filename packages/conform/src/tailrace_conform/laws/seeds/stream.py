"""The same seed gives the same answer streamed."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.seeded import answer, judge_repeats
from tailrace_conform.verdict import Verdict


async def check(ctx: LawContext) -> Verdict:
    return await judge_repeats(ctx, lambda seed: answer(ctx, seed, stream=True), "as a stream", "plain and streamed")


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
