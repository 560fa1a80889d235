"""Penalties on tokens of the output, judged along answers.

A server that reports raw logprobs is judged by its draws: at each place the odds of tokens that were there are those of
the reported probabilities, moved by exactly what was asked. A server that reports processed logprobs is judged by the
reports: with the same seed, with and without the penalty, the same context has reports that differ by exactly this.
Which of them a server does is found out with a low temperature, which moves processed logprobs alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.paths import Bet, Path, Place, follow, likeliest, path_verdict, softmax
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyToken, reply
from tailrace_conform.sequential import BETA, SHARE
from tailrace_conform.spread import Key, Source, key_of, names_one_token, source, spread_of, top_of
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive, not_offered

SEEN = 0.03  # places where the tokens that were there have less of the probability say too little
COLD = 0.5
CASES = 12  # pairs of answers that are compared, by the budget's `cases` times this

Moved = Callable[[int], float]  # how far the logit of a token moves down that was there so often


@dataclass(frozen=True)
class PenaltyLaw:
    """field: its name. size: what is asked for. moved: the law; mistakes: what known mistakes do instead. required:
    the mistakes that "holds" excludes at least, where the budget ends before all are."""

    field: str
    size: float
    moved: Moved
    mistakes: dict[str, Moved]
    required: tuple[str, ...]


async def reports(ctx: LawContext, found: Source) -> str:
    """ "raw" or "processed" logprobs; "unclear" where neither fits. Found once in a run."""
    if "reports" not in ctx.shared:
        ctx.shared["reports"] = await find_reports(ctx, found)
    return ctx.shared["reports"]


async def find_reports(ctx: LawContext, found: Source) -> str:
    spread = found.spread
    assert spread is not None
    cold = await spread_of(ctx, spread.prompt, **{**found.neutral, "temperature": COLD})
    if cold is None:
        return "unclear"
    before = {key: math.log(p) for key, p in zip(spread.keys, spread.probabilities, strict=True) if p > 0}
    after = {key: math.log(p) for key, p in zip(cold.keys, cold.probabilities, strict=True) if p > 0}
    both = [key for key in before if key in after]
    slack = max(0.05, 3 * spread.tolerance)
    if len(both) < 3:
        return "unclear"
    if all(abs(before[key] - after[key]) <= slack for key in both):
        return "raw"
    moved = [after[key] - after[both[0]] - (before[key] - before[both[0]]) / COLD for key in both]
    return "processed" if all(abs(one) <= slack / COLD for one in moved) else "unclear"


async def check(ctx: LawContext, penalty: PenaltyLaw) -> Verdict:
    """The law of a penalty on the output."""
    found = await source(ctx)
    if found.spread is None:
        return not_offered("no logprobs of the likeliest tokens are reported")
    kind = await reports(ctx, found)
    if kind == "raw":
        return await check_draws(ctx, found, penalty)
    if kind == "processed" and ctx.capabilities.offers("seed"):
        return await check_reports(ctx, found, penalty)
    return inconclusive("it is not clear what the reported logprobs are of: those of a low temperature are neither")


# ---- by draws


async def check_draws(ctx: LawContext, found: Source, penalty: PenaltyLaw) -> Verdict:
    assert found.spread is not None
    prompt = found.spread.prompt

    def bets(path: Path, at: int, place: Place) -> Bet | None:
        history = Counter(path.tokens[:at])
        counts = [history[key] for key in place.keys]
        seen = sum(p for p, count in zip(place.law, counts, strict=True) if count)
        if not SEEN <= seen <= 1 - SEEN:
            return None
        late = Counter(path.tokens[: at - 1])
        in_prompt = [count + written(key, prompt) for key, count in zip(place.keys, counts, strict=True)]
        stated = {name: moved_by(place, counts, moved) for name, moved in penalty.mistakes.items()}
        stated["the last token is not counted"] = moved_by(place, [late[key] for key in place.keys], penalty.moved)
        stated["tokens of the prompt are counted too"] = moved_by(place, in_prompt, penalty.moved)
        return Bet(moved_by(place, counts, penalty.moved), stated)

    outcome = await follow(ctx, found, {penalty.field: penalty.size}, bets, SHARE)
    if outcome.finding == "broken":
        if await misreported_paths(ctx, found):
            return inconclusive(
                "without any penalty the draws do not follow the reported logprobs either (logprobs.paths), so it "
                "can't be judged by them",
                outcome.exchange,
            )
        if likeliest(outcome.evidence) == "no effect":
            return ignored(f"{outcome.draws} draws are like those without it", outcome.exchange)
    return path_verdict(outcome, penalty.required)


def written(key: Key, prompt: str) -> int:
    """How often a token's text stands in the prompt, about: the tokens of the prompt are not known."""
    text = key.decode(errors="replace") if isinstance(key, bytes) else key
    return prompt.count(text)


def moved_by(place: Place, counts: list[int], moved: Moved) -> tuple[float, ...]:
    """The place's probabilities, the logits of tokens that were there moved down."""
    return softmax(
        [
            math.log(p) - (moved(count) if count else 0.0) if p > 0 else -math.inf
            for p, count in zip(place.law, counts, strict=True)
        ]
    )


async def misreported_paths(ctx: LawContext, found: Source) -> bool:
    """Whether draws along answers disagree with the reported logprobs without any penalty: bets that tokens which were
    there come more often or more rarely. Found once in a run."""
    if "misreported_paths" not in ctx.shared:

        def bets(path: Path, at: int, place: Place) -> Bet | None:
            history = Counter(path.tokens[:at])
            counts = [history[key] for key in place.keys]
            if not any(counts):
                return None
            more, fewer = (moved_by(place, counts, lambda count, size=size: size) for size in (-0.7, 0.7))
            return Bet(stated={"come again": more, "stay away": fewer})

        outcome = await follow(ctx, found, {}, bets, BETA)
        ctx.shared["misreported_paths"] = outcome.finding == "broken"
    return ctx.shared["misreported_paths"]


# ---- by reports


@dataclass(frozen=True)
class Shift:
    """How far a token's reported log-odds against tokens that were not there moved, and what the law says. noise: how
    far those others moved among themselves."""

    key: Key
    count: int
    seen: float
    law: float
    noise: float
    exchange: Exchange


async def check_reports(ctx: LawContext, found: Source, penalty: PenaltyLaw) -> Verdict:
    """Compare reports of equal contexts: exact, but for the rounding that tokens without a penalty show."""
    assert found.spread is not None
    top, shifts = len(found.spread.keys), []
    for _ in range(ctx.budget.cases * CASES):
        fields = {**found.neutral, "seed": ctx.rng.randrange(2**31), "max_tokens": 32}
        plain = await ctx.generate(found.spread.prompt, logprobs=top, **fields)
        moved = await ctx.generate(found.spread.prompt, logprobs=top, **fields, **{penalty.field: penalty.size / 3})
        shifts += shifts_of(plain, moved, penalty)
        if sum(one.count > 1 for one in shifts) >= 3 * CASES:
            break
    wrong = [one for one in shifts if abs(one.seen - one.law) > max(0.05, 3 * one.noise)]
    figures = {"compared": len(shifts), "several times": sum(one.count > 1 for one in shifts)}
    if wrong:
        one = wrong[0]
        said = (
            f"{quoted(one.key)} was there {one.count} times: its log-odds moved by {one.seen:.3f}, not by {one.law:.3f}"
        )
        if all(abs(other.seen) <= max(0.05, 3 * other.noise) for other in shifts):
            return ignored(
                f"the reported logprobs of {len(shifts)} tokens that were there did not move", one.exchange, **figures
            )
        return broken(said, one.exchange, **figures)
    if min(figures.values()) < CASES:
        return inconclusive("too few tokens came again in equal contexts", **figures)
    return holds(f"the log-odds of {len(shifts)} tokens that were there moved by what was asked", **figures)


def shifts_of(plain: Exchange, moved: Exchange, penalty: PenaltyLaw) -> list[Shift]:
    """Of the places up to the first that was drawn otherwise."""
    before, after = reply(plain).choice().tokens, reply(moved).choice().tokens
    history: Counter[Key] = Counter()
    made: list[Shift] = []
    for one, other in zip(before, after, strict=False):
        made += shifts_at(one, other, history, penalty, moved)
        if key_of(one) != key_of(other):
            break
        history[key_of(one)] += 1
    return made


def shifts_at(
    one: ReplyToken, other: ReplyToken, history: Counter[Key], penalty: PenaltyLaw, moved: Exchange
) -> list[Shift]:
    first, second = top_of(one), top_of(other)
    differences = {key: second[key] - first[key] for key in first if key in second and names_one_token(key)}
    fresh = [value for key, value in differences.items() if not history[key]]
    if len(fresh) < 3:
        return []
    middle = median(fresh)
    noise = max(abs(value - middle) for value in fresh)
    return [
        Shift(key, history[key], value - middle, -penalty.moved(history[key]) / 3, noise, moved)
        for key, value in differences.items()
        if history[key]
    ]
