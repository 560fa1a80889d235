"""Answers to seeded requests, and the reports on two answers that differ but should not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.spread import neutral_fields
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

LENGTH = 24
TOP = 5
NOT_REPEATED = inconclusive("a seed does not give the same answer twice even alone (seeds.same)")
ALL_ALIKE = inconclusive(
    "different seeds give the same answers, or answers without text: that a seed gives the same says nothing"
)


@dataclass(frozen=True)
class SeededAnswer:
    """An exchange and one of its choices."""

    exchange: Exchange
    choice: ReplyChoice

    @property
    def said(self) -> str:
        """All that was written, thoughts too."""
        return self.choice.said


async def answer(ctx: LawContext, seed: int | None, crowded: bool = False, **fields: Any) -> SeededAnswer:
    """An answer at temperature 1, of tokens that are reported where logprobs are offered."""
    body: dict[str, Any] = {**neutral_fields(ctx), "max_tokens": LENGTH, **fields}
    body |= {} if seed is None else {"seed": seed}
    top = TOP if ctx.capabilities.offers("logprobs") else None
    prompt = body.pop("prompt", PROMPTS["story"])
    made = await ctx.generate(prompt, logprobs=top, crowded=crowded, **body)
    return SeededAnswer(made, reply(made).choice())


async def alone(ctx: LawContext, seeds: Sequence[int]) -> list[SeededAnswer]:
    """An answer per seed, one after the other."""
    return [await answer(ctx, seed) for seed in seeds]


def seeds_of(ctx: LawContext) -> list[int]:
    """Seeds for an exact law: as many as the budget has cases."""
    return [ctx.rng.randrange(2**31) for _ in range(max(2, ctx.budget.cases))]


async def repeatable(ctx: LawContext) -> bool:
    """Whether a seed gives the same answer twice, alone: found once in a run. Where it does not, no law about what
    disturbs seeds can be judged."""
    if "repeatable" not in ctx.shared:
        seeds = seeds_of(ctx)
        first, again = await alone(ctx, seeds), await alone(ctx, seeds)
        ctx.shared["repeatable"] = all(one.said == other.said for one, other in zip(first, again, strict=True))
    return ctx.shared["repeatable"]


def first_difference(one: ReplyChoice, other: ReplyChoice) -> int | None:
    """The first place at which two answers have different tokens; None where tokens are not reported."""
    for at, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a.text != b.text:
            return at
    shorter = min(len(one.tokens), len(other.tokens))
    return shorter if shorter else None


def cause(one: ReplyChoice, other: ReplyChoice) -> str:
    """Whether the model's numbers had changed where the answers part, or the noise alone."""
    at = first_difference(one, other)
    if at is None or at >= min(len(one.tokens), len(other.tokens)):
        return ""
    moved = 0.0
    for a, b in zip(one.tokens[: at + 1], other.tokens[: at + 1], strict=True):
        second = {text: value for text, _, value in b.top}
        moved = max([moved, *(abs(value - second[text]) for text, _, value in a.top if text in second)])
    if moved == 0.0:
        return f"; they part at token {at}, where the reported logprobs are the same: the noise is another"
    return (
        f"; they part at token {at}, and the reported logprobs differ by up to {moved:.2g}: the model's numbers moved"
    )


def compared(pairs: Sequence[tuple[SeededAnswer, SeededAnswer]], how: str) -> Verdict | None:
    """broken, where the second of a pair is not the first; how: "alone and among others"."""
    for one, other in pairs:
        if one.said != other.said:
            share = sum(a.said != b.said for a, b in pairs)
            said = f"{share} of {len(pairs)} seeds give another answer {how}{cause(one.choice, other.choice)}"
            return broken(said, other.exchange, one.exchange)
    return None


def differ(answers: Sequence[SeededAnswer]) -> bool:
    """Whether different seeds give different answers, so that equal ones mean something."""
    return len({one.said for one in answers if not one.choice.blank}) > 1


async def judge_repeats(
    ctx: LawContext, again: Callable[[int], Awaitable[SeededAnswer]], how: str, held: str
) -> Verdict:
    """Compare the answer of each seed alone with the answer of `again`.

    how: "among 7 other requests", for a verdict of difference. held: "alone and among 7 others", for one of equality.
    """
    if not await repeatable(ctx):
        return NOT_REPEATED
    seeds = seeds_of(ctx)
    first = await alone(ctx, seeds)
    pairs = [(one, await again(seed)) for seed, one in zip(seeds, first, strict=True)]
    if (verdict := compared(pairs, how)) is not None:
        return verdict
    return holds(f"{len(seeds)} seeds, {held}") if differ(first) else ALL_ALIKE
