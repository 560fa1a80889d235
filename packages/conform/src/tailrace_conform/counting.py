"""Draws until a sequential test decides, or the budget ends: the one loop of all laws about first tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace_conform import expected
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.expected import Expectation, weigh_counts
from tailrace_conform.plain import quoted
from tailrace_conform.sequential import Evidence, Finding, judge, log_e, remaining
from tailrace_conform.spread import SAME_STEP, Key, Source, draw
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive, not_offered

ROUND = 64  # draws between two looks
# Odds ratios that "holds" excludes, by the size of the budget.
RATIOS = ((1_000, 3.0), (10_000, 1.5), (math.inf, 1.25))
CONFIRM = 1e-3  # error of what only explains a finding
NO_LOGPROBS = not_offered("no logprobs of the likeliest tokens are reported")
NO_CLEAR_BOUND = inconclusive("no bound between two of the reported tokens is clear of rounding")


@dataclass(frozen=True)
class CountOutcome:
    """What a test found, from which counts, and one of the requests."""

    finding: Finding
    counts: Counter[Key | None]
    evidence: Evidence
    exchange: Exchange


def effect(draws: int) -> float:
    """Return the logarithm of the odds ratio that a test with this number of draws excludes."""
    return math.log(next(ratio for most, ratio in RATIOS if draws < most))


async def until_decided(
    ctx: LawContext, found: Source, fields: Mapping[str, Any], law: Expectation, alpha: float
) -> CountOutcome:
    """Draw with the fields and look after each round."""
    budget = ctx.budget.draws
    counts: Counter[Key | None] = Counter()
    while True:
        more, exchange = await draw(ctx, found, fields, min(ROUND, budget))
        counts += more
        evidence = weigh_counts(law, counts, budget, effect(budget))
        finding = judge(evidence, alpha)
        if finding != "open" or counts.total() >= 2 * budget:  # stated is what half of it sees
            return CountOutcome(finding, counts, evidence, exchange)


async def judged(ctx: LawContext, found: Source, fields: Mapping[str, Any], law: Expectation, alpha: float) -> Verdict:
    """The verdict of a knob's law: the fields are the knob's, the expectation is its definition."""
    outcome = await until_decided(ctx, found, fields, law, alpha)
    figures = figures_of(outcome)
    if outcome.finding == "holds":
        return holds(listed(outcome), **figures)
    if outcome.finding == "open":
        return inconclusive(listed(outcome), outcome.exchange, **figures)
    if await misreported(ctx, found):
        return inconclusive(
            "without any knob the draws do not follow the reported logprobs either (logprobs.frequencies), so the knob "
            "can't be judged by them",
            outcome.exchange,
            **figures,
        )
    assert found.spread is not None
    total, shown = outcome.counts.total(), (outcome.exchange, found.spread.exchange)
    without = weigh_counts(expected.neutral(found.spread), outcome.counts, total, effect(total))
    if judge(without, CONFIRM) != "broken":
        return ignored(f"{total} draws are like those without it", *shown, **figures)
    return broken(explained(law, outcome), *shown, **figures)


async def misreported(ctx: LawContext, found: Source) -> bool:
    """Whether draws without any knob disagree with the reported logprobs; found once in a run."""
    if "misreported" not in ctx.shared:
        assert found.spread is not None
        if sum(found.spread.probabilities) > math.exp(SAME_STEP):
            return True
        outcome = await until_decided(ctx, found, {}, expected.neutral(found.spread), CONFIRM)
        ctx.shared["misreported"] = outcome.finding == "broken"
    return ctx.shared["misreported"]


def figures_of(outcome: CountOutcome) -> dict[str, Any]:
    """The numbers behind a verdict. log_e: natural logarithm of the evidence against the law; null: infinite."""
    value = log_e(outcome.evidence)
    return {"draws": outcome.counts.total(), "log_e": round(value, 2) if math.isfinite(value) else None}


def listed(outcome: CountOutcome) -> str:
    """Return a sentence on what a test excludes and what it does not, if the test did not end in "broken"."""
    left = remaining(outcome.evidence)
    excluded = [name for name in outcome.evidence.stated if name not in left]
    said = f"{outcome.counts.total()} draws exclude: {'; '.join(excluded) or 'nothing'}"
    if not outcome.evidence.stated:
        return (
            said + "; the draws of this budget can show no deviation, for one token has nearly all of the probability"
        )
    return said + (f"; not yet: {'; '.join(left)}" if left else "")


def explained(law: Expectation, outcome: CountOutcome) -> str:
    """What was drawn that should not have been, or the deviation that fits best."""
    counts = outcome.counts
    never = [key for key, p in law.probabilities.items() if p == 0 and counts.get(key)]
    if law.rest[1] == 0 and counts.get(None):
        never.append("a token that is not among the likeliest")
    if never:
        outside = sum(counts[key] for key in never if key in counts) or counts[None]
        return f"of {counts.total()} draws {outside} were outside the set: {quoted(never[:5])}"
    best = max(outcome.evidence.stated.items(), key=lambda one: one[1].mixed, default=None)
    if best and best[1].mixed > max(outcome.evidence.others.values(), default=-math.inf):
        return f"{counts.total()} draws look like this instead: {best[0]}"
    worst = max(law.probabilities, key=lambda key: abs(counts.get(key, 0) / counts.total() - law.probabilities[key]))
    share = law.vector()[list(law.probabilities).index(worst)]
    total, seen = counts.total(), counts.get(worst, 0)
    return f"{quoted(worst)} came {seen} times in {total} draws, expected {share * total:.1f}"
