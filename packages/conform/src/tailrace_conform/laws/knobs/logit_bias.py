"""logit_bias is added to a token's logit: its odds against all others move by e^bias."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.families import Member, logistic, steps, weigh_families
from tailrace_conform.law import Law
from tailrace_conform.plain import listed, quoted
from tailrace_conform.reply import reply
from tailrace_conform.sequential import SHARE, judge, log_e, remaining
from tailrace_conform.spread import Source, seeded, source
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive

# Ids that name ordinary text in most vocabularies; the first that can be forced is taken.
IDS = (40, 70, 90, 1_040, 2_500, 5_000, 20_000)
FORCE, HALF = 100.0, 1.2
GRID = steps(-4.0, 4.0, 0.05)
TOLERANCE = 0.03  # rounding of a logit and of its bias, and half a step of the grid


@dataclass(frozen=True)
class Forced:
    """A token that a bias forces. text: its text. others: how many of the draws were another text."""

    id: int
    text: str
    others: int
    exchange: Exchange


async def drawn(ctx: LawContext, found: Source, id: int, bias: float, count: int) -> tuple[list[str], Exchange]:
    """Texts of about `count` first tokens."""
    prompt = found.spread.prompt if found.spread else ""
    size = min(found.size, count)
    body = {**found.neutral, "max_tokens": 1, "logit_bias": {str(id): bias}} | ({"n": size} if size > 1 else {})
    made = await ctx.together(ctx.generate(prompt, **seeded(ctx, body)) for _ in range(max(1, count // size)))
    return [choice.text for one in made for choice in reply(one).choices.values()], made[0]


async def force(ctx: LawContext, found: Source) -> Forced | None:
    """The first id that is forced by a large bias, else the last that was not; None where none is taken."""
    last = None
    for id in IDS:
        try:
            texts, exchange = await drawn(ctx, found, id, FORCE, 8)
        except Refused:
            continue
        text = max(set(texts), key=texts.count)
        last = Forced(id, text, sum(one != text for one in texts), exchange)
        if text.strip() and "\ufffd" not in text and not last.others:
            return last
    return last


async def balance(ctx: LawContext, found: Source, token: Forced) -> float | None:
    """A bias at which the token comes in about half of the draws."""
    low, high = -5.0, 40.0
    for _ in range(9):
        middle = (low + high) / 2
        texts, _ = await drawn(ctx, found, token.id, middle, 32)
        share = texts.count(token.text) / len(texts)
        if 0.3 <= share <= 0.7:
            return middle
        low, high = (middle, high) if share < 0.5 else (low, middle)
    return None


async def check(ctx: LawContext) -> Verdict:
    found = await source(ctx)
    token = await force(ctx, found)
    if token is None:
        return inconclusive(f"none of the ids {listed(IDS)} is taken")
    if token.others:
        plain, _ = await drawn(ctx, found, token.id, 0.0, 8)
        said = f"id {token.id} with a bias of {FORCE:g}: {token.others + 1} of 8 first tokens differ"
        return (ignored if len(set(plain)) > 1 else inconclusive)(said, token.exchange)
    middle = await balance(ctx, found, token)
    if middle is None:
        return inconclusive(f"no bias from −5 to 40 gives id {token.id} about half of the draws", token.exchange)
    return await compare(ctx, found, token, middle)


async def compare(ctx: LawContext, found: Source, token: Forced, middle: float) -> Verdict:
    """Draw with two biases: the log-odds must differ by what the biases do. The log-odds without a bias are unknown."""

    def moved(factor: float) -> Member:
        return lambda at: (logistic(at - factor * HALF), logistic(at + factor * HALF))

    stated = {"half of it is added": moved(0.5), "twice of it is added": moved(2.0), "no effect": moved(0.0)}
    counts, exchange = [[0, 0], [0, 0]], token.exchange
    while True:
        for group, bias in enumerate((middle - HALF, middle + HALF)):
            texts, exchange = await drawn(ctx, found, token.id, round(bias, 6), 64)
            counts[group][0] += texts.count(token.text)
            counts[group][1] += len(texts) - texts.count(token.text)
        evidence = weigh_families(counts, moved(1.0), stated, GRID, lambda at: (TOLERANCE, TOLERANCE))
        finding, total = judge(evidence, SHARE), sum(map(sum, counts))
        if finding != "open" or total >= 2 * ctx.budget.draws:
            break
    said = (
        f"{quoted(token.text)} came {counts[0][0]} times in {sum(counts[0])} draws with a bias of {middle - HALF:.3f}, "
        f"and {counts[1][0]} times in {sum(counts[1])} with {middle + HALF:.3f}"
    )
    figures = {"draws": total, "log_e": round(log_e(evidence), 2)}
    left = remaining(evidence)
    if finding == "broken":
        return broken(said, exchange, **figures)
    said += f"; not yet excluded: {'; '.join(left)}" if left else ""
    return inconclusive(said, exchange, **figures) if "no effect" in left else holds(said, **figures)


LAW = Law(
    id="knobs.logit-bias",
    sentence="logit_bias is added to the logit of its token: its odds against all others move by e^bias.",
    why="It is how answers are steered and labels scored; a bias that is scaled or lost gives other probabilities.",
    method="A token is forced with a bias of 100, to learn its text. A bias is looked for that gives it about half of "
    "the draws. Then first tokens are drawn with a bias 1.2 lower and 1.2 higher, and a sequential test asks whether "
    "the log-odds differ by 2.4, whatever they are without a bias.",
    violation="A forced token does not come, or its odds move by another factor.",
    check=check,
    needs=("logit_bias", "temperature"),
    error_rate=SHARE,
    cost=30,
)
