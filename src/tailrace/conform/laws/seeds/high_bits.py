"""Seeds that differ in high bits only are different seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.laws.seeds.choices_differ import chance
from tailrace.conform.seeded import SeededAnswer, answer, seeds_of
from tailrace.conform.sequential import SHARE
from tailrace.conform.verdict import Verdict, broken, holds, inconclusive

BITS = (16, 24, 31, 32, 40, 62)
AGAIN = 3  # further seeds that must collide as well: what is equal by another fault is so at times


async def collide(ctx: LawContext, seed: int, bit: int) -> bool:
    """Whether the seed gives the same answer with the bit and without."""
    return (await answer(ctx, seed)).said == (await answer(ctx, seed + 2**bit)).said


async def check(ctx: LawContext) -> Verdict:
    for seed in seeds_of(ctx):
        plain = await answer(ctx, seed % 2**16)
        if chance(plain.choice) <= math.log(SHARE / len(BITS)):
            return await by_bits(ctx, seed % 2**16, plain)
    return inconclusive("no answer is unlikely enough to tell")


async def by_bits(ctx: LawContext, seed: int, plain: SeededAnswer) -> Verdict:
    """Each bit on its own: what one of them does by chance says nothing of the others."""
    different: list[int] = []
    at_times: list[int] = []
    for bit in BITS:
        made = await ctx.server.request(plain.exchange.path, {**plain.exchange.body, "seed": seed + 2**bit})
        if made.refused and bit > 31:
            break  # seeds of 32 bits are documented by some
        other = await answer(ctx, seed + 2**bit)
        if other.said != plain.said:
            different.append(bit)
        elif all([await collide(ctx, ctx.rng.randrange(2**16), bit) for _ in range(AGAIN)]):
            return broken(f"seeds that differ by 2^{bit} give the same answer", other.exchange, plain.exchange)
        else:
            at_times.append(bit)
    if at_times:
        return inconclusive(f"seeds that differ by {powers(at_times)} give the same answer at times, but not always")
    return holds(f"seeds that differ by {powers(different)} give different answers")


def powers(bits: Sequence[int]) -> str:
    """2^16, 2^24"""
    return ", ".join(f"2^{bit}" for bit in bits)


LAW = Law(
    id="seeds.high-bits",
    sentence="Seeds that are accepted are used whole: those that differ in one high bit give different answers.",
    why="Seeds are often hashes or times. Cut to 32 or 16 bits, different ones collide in silence.",
    method="A request at temperature 1 is sent with a seed, and with the seed plus 2^16, 2^24, …, 2^62. The chance of "
    "equal answers is known from the reported logprobs. What is equal must be so for three more seeds; where it is "
    "not, the other bits decide. Large seeds may be refused.",
    violation="Two seeds give the same unlikely answer, whatever their low bits.",
    check=check,
    needs=("seed", "logprobs"),
    error_rate=SHARE,
    cost=14,
)
