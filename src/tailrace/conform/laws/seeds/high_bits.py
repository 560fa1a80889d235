"""Seeds that differ in high bits only are different seeds."""

from __future__ import annotations

import math

from tailrace.conform.context import LawContext
from tailrace.conform.law import Law
from tailrace.conform.laws.seeds.choices_differ import chance
from tailrace.conform.seeded import answer, seeds_of
from tailrace.conform.sequential import SHARE
from tailrace.conform.verdict import Verdict, broken, holds, inconclusive

BITS = (16, 24, 31, 32, 40, 62)


async def check(ctx: LawContext) -> Verdict:
    taken = [bit for bit in BITS if bit <= 31]
    for seed in seeds_of(ctx):
        plain = await answer(ctx, seed % 2**16)
        if chance(plain.choice) > math.log(SHARE / len(BITS)):
            continue
        for bit in BITS:
            made = await ctx.server.request(plain.exchange.path, {**plain.exchange.body, "seed": seed % 2**16 + 2**bit})
            if made.refused and bit > 31:
                break  # seeds of 32 bits are documented by some
            other = await answer(ctx, seed % 2**16 + 2**bit)
            if other.said == plain.said:
                return broken(f"seeds that differ by 2^{bit} give the same answer", other.exchange, plain.exchange)
            taken = [*taken, bit] if bit not in taken else taken
        return holds(f"seeds that differ by 2^{', 2^'.join(map(str, taken))} give different answers")
    return inconclusive("no answer is unlikely enough to tell")


LAW = Law(
    id="seeds.high-bits",
    sentence="Seeds that are accepted are used whole: those that differ in one high bit give different answers.",
    why="Seeds are often hashes or times. Cut to 32 or 16 bits, different ones collide in silence.",
    method="A request at temperature 1 is sent with a seed, and with the seed plus 2^16, 2^24, …, 2^62. The chance of "
    "equal answers is known from the reported logprobs. Large seeds may be refused.",
    violation="Two seeds give the same unlikely answer.",
    check=check,
    needs=("seed", "logprobs"),
    error_rate=SHARE,
    cost=14,
)
