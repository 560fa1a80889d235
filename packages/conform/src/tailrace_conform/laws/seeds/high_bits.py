"""Seeds that differ in high bits only, or by what a remainder leaves out, are different seeds."""

from __future__ import annotations

import math

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.laws.seeds.choices_differ import chance
from tailrace_conform.seeded import SeededAnswer, answer, seeds_of
from tailrace_conform.sequential import SHARE
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

# A remainder by a power of ten, or by the largest number of 31 or 32 bits, loses the others. In order of their size.
STEPS = {
    "2^16": 2**16,
    "2^24": 2**24,
    "10^9": 10**9,
    "2^31 - 1": 2**31 - 1,
    "2^31": 2**31,
    "2^32 - 1": 2**32 - 1,
    "2^32": 2**32,
    "2^40": 2**40,
    "2^62": 2**62,
}
AGAIN = 3  # further seeds that must collide as well: what is equal by another fault is so at times


async def collide(ctx: LawContext, seed: int, step: int) -> bool:
    """Whether the seed and the seed so much higher give the same answer."""
    return (await answer(ctx, seed)).said == (await answer(ctx, seed + step)).said


async def check(ctx: LawContext) -> Verdict:
    for seed in seeds_of(ctx):
        plain = await answer(ctx, seed % 2**16)
        if chance(plain.choice) <= math.log(SHARE / len(STEPS)):
            return await by_steps(ctx, seed % 2**16, plain)
    return inconclusive("no answer is unlikely enough to tell")


async def by_steps(ctx: LawContext, seed: int, plain: SeededAnswer) -> Verdict:
    """Each step on its own: what one of them does by chance says nothing of the others."""
    different: list[str] = []
    at_times: list[str] = []
    for name, step in STEPS.items():
        made = await ctx.server.request(plain.exchange.path, {**plain.exchange.body, "seed": seed + step})
        if made.refused and seed + step >= 2**31:
            break  # seeds of 31 or 32 bits are documented by some
        other = await answer(ctx, seed + step)
        if other.said != plain.said:
            different.append(name)
        elif all([await collide(ctx, ctx.rng.randrange(2**16), step) for _ in range(AGAIN)]):
            return broken(f"seeds that differ by {name} give the same answer", other.exchange, plain.exchange)
        else:
            at_times.append(name)
    if at_times:
        said = ", ".join(at_times)
        return inconclusive(f"seeds that differ by {said} give the same answer at times, but not always")
    return holds(f"seeds that differ by {', '.join(different)} give different answers")


LAW = Law(
    id="seeds.high-bits",
    sentence="Seeds that are accepted are used whole: those that differ in one high bit or by 10^9 give different "
    "answers.",
    why="Seeds are often hashes or times. Cut to 32 or 16 bits, or modulo 1,000, different ones collide in silence.",
    method="A request at temperature 1 is sent with a seed, and with the seed plus 2^16, 2^24, 10^9 (a multiple "
    "of the smaller powers of ten), 2^31 - 1, …, 2^62. The chance of equal answers is known from the reported "
    "logprobs. What is equal must be so for three more seeds; where it is not, the others decide. Large seeds may be "
    "refused.",
    violation="Two seeds give the same unlikely answer, whatever their low bits.",
    check=check,
    needs=("seed", "logprobs"),
    error_rate=SHARE,
    cost=18,
)
