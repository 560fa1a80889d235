"""temperature 0 is greedy: the same answer with every seed, each token the likeliest."""

from __future__ import annotations

import asyncio

from tailrace_conform.cases import need_text
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.spread import LARGEST_JITTER, seeded, top_of
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

CASES = ("plain", "story", "numbers")


def near_tie(choice: ReplyChoice, at: int) -> bool:
    """Whether the two likeliest tokens of a place are closer than the rounding of bfloat16 between batches."""
    if at >= len(choice.tokens):
        return False
    values = list(top_of(choice.tokens[at]).values())
    return len(values) > 1 and values[0] - values[1] <= LARGEST_JITTER


def differing(one: ReplyChoice, other: ReplyChoice) -> int:
    """The first token at which two answers differ."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    same = min(len(one.tokens), len(other.tokens))
    return next((at for at, (a, b) in enumerate(pairs) if a.text != b.text), same)


async def varies(ctx: LawContext) -> bool:
    """Whether answers at temperature 1 differ at all; they are asked for until two do."""
    said = set()
    for _ in range(max(4, ctx.budget.cases)):
        fields = seeded(ctx, {"temperature": 1.0, "max_tokens": 32})
        said.add(reply(await ctx.generate(PROMPTS["story"], **fields)).choice().said)
        if len(said) > 1:
            return True
    return False


async def check(ctx: LawContext) -> Verdict:
    top = 2 if ctx.capabilities.offers("logprobs") else None
    ties, written = 0, ""
    for name in CASES:
        fields = {"temperature": 0.0, "max_tokens": 32}
        made: list[Exchange] = await asyncio.gather(
            *(ctx.generate(PROMPTS[name], logprobs=top, **seeded(ctx, dict(fields))) for _ in range(ctx.budget.cases))
        )
        choices = [reply(one).choice() for one in made]
        written += choices[0].said
        for exchange, choice in zip(made[1:], choices[1:], strict=True):
            if choice.said == choices[0].said:
                continue
            at = differing(choices[0], choice)
            if near_tie(choices[0], at):
                ties += 1
                continue
            said = f"two answers at temperature 0 differ from token {at} on, where no two tokens are equally likely"
            return broken(said, exchange, made[0])
    need_text(written)
    if not await varies(ctx):
        return inconclusive("the answers at temperature 1 are all alike too: that they are at 0 says nothing")
    total = len(CASES) * ctx.budget.cases
    return holds(f"{total} answers, {ties} of them parted at a near tie" if ties else f"{total} answers")


LAW = Law(
    id="knobs.temperature-zero",
    sentence="At temperature 0 the answer is the same with every seed.",
    why="Everybody takes temperature 0 for deterministic: tests, caches and evaluations are built on it.",
    method="The same prompts are asked at temperature 0 with several seeds, at once. Answers may part only where the "
    "two likeliest tokens are as close as the rounding of logits between batches. Where all answers at temperature "
    "1 are alike too, nothing is said.",
    violation="Two answers differ where one token was clearly the likeliest.",
    check=check,
    needs=("temperature",),
    cost=9,
)
