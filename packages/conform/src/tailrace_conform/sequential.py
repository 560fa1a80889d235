"""Sequential tests with a stated error: whether counts of drawn tokens agree with the probabilities that a law says.

After any draw a test may stop. "broken" is said where the evidence E against the law reaches 1/alpha. E is the
likelihood of all draws under a mixture of other distributions, over the largest likelihood that any distribution within
the law gives them (universal inference: Wasserman, Ramdas, Balakrishnan 2020). Under the law E is at most a nonnegative
martingale that begins at 1, so it ever reaches 1/alpha with a probability of at most alpha (Ville 1939). "holds" is
said where each stated deviation (another temperature, one token more, odds that are off by a factor, …) has been
rejected in the same way, with an error of BETA for each. Whoever stops earlier says neither.

What a law says is known within bounds: logprobs are rounded, and of the tokens that are not reported only the mass is
known. So a law is a set of distributions, all within a box, and its likelihood is the largest in the box.

Pure functions on counts and log-likelihoods; nothing here knows of servers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, NamedTuple

ALPHA = 1e-6  # of a false "broken" in a whole run
BETA = 1e-3  # of a false "holds" where a stated deviation is there
Finding = Literal["broken", "holds", "open"]
Probabilities = tuple[float, ...]
# How far from the law the mixture looks where no deviation is stated: pseudo-counts of Dirichlet priors around it.
CONCENTRATIONS = (4.0, 32.0, 256.0)


class Score(NamedTuple):
    """Log-likelihoods of one hypothesis: the largest that any of its distributions gives, and that of a mixture of
    them. They are equal where the hypothesis is one distribution."""

    largest: float
    mixed: float


NOTHING = Score(0.0, 0.0)  # of no draws


@dataclass(frozen=True)
class Evidence:
    """law: its score. stated: those of the deviations whose absence "holds" states. others: log-likelihoods of what
    only the mixture against the law looks for."""

    law: Score = NOTHING
    stated: Mapping[str, Score] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """Draws that have one distribution by the law.

    counts: per category. law: the distribution; low, high: per category, what the law allows (they hold `law`).
    stated, others: deviation → its distribution, as in Evidence. A deviation that a cell doesn't have is `law` there.
    """

    counts: tuple[int, ...]
    law: Probabilities
    low: Probabilities
    high: Probabilities
    stated: Mapping[str, Probabilities] = field(default_factory=dict)
    others: Mapping[str, Probabilities] = field(default_factory=dict)


def loglik(counts: Sequence[int], probabilities: Sequence[float]) -> float:
    """Σ n · log p, in the order of the draws; −inf where something impossible was drawn."""
    total = 0.0
    for count, probability in zip(counts, probabilities, strict=True):
        if count:
            if probability <= 0.0:
                return -math.inf
            total += count * math.log(probability)
    return total


def largest_loglik(counts: Sequence[int], low: Sequence[float], high: Sequence[float]) -> float:
    """The maximum of Σ n · log p over all distributions with low ≤ p ≤ high, never less than it.

    The maximum is p = clip(n / λ, low, high), with the λ that makes the sum 1 (the problem is concave, and this solves
    its Karush-Kuhn-Tucker conditions). Between two of the λ at which a category meets a bound the sum is a constant
    plus a multiple of 1/λ. Categories that were not drawn take up what is left.

    Raises:
        ValueError: no distribution lies between the bounds.
    """
    if sum(low) > 1 + 1e-9 or sum(high) < 1 - 1e-9:
        raise ValueError("no distribution lies between the bounds")

    drawn = [one for one in zip(counts, low, high, strict=True) if one[0]]
    left = 1.0 - sum(low) + sum(a for _, a, _ in drawn)  # for the drawn: the others take their least
    if len(drawn) == 1:
        n, _, b = drawn[0]
        return loglik([n], [min(b, left)])

    def at_rate(rate: float) -> list[float]:
        return [min(max(n / rate, a), b) for n, a, b in drawn]

    bends = sorted({n / bound for n, *bounds in drawn for bound in bounds if bound > 0})
    first = bisect_left(bends, True, key=lambda rate: sum(at_rate(rate)) <= left)
    rate = bends[min(first, len(bends) - 1)] if bends else 1.0
    if 0 < first < len(bends):
        inner = math.sqrt(bends[first - 1] * bends[first])
        free = [a < n / inner < b for n, a, b in drawn]
        fixed = sum(p for p, one in zip(at_rate(inner), free, strict=True) if not one)
        if any(free):
            rate = sum(n for (n, _, _), one in zip(drawn, free, strict=True) if one) / (left - fixed)
    # a little more than 1 rather than less: never too little for the law
    return loglik([n for n, _, _ in drawn], at_rate(rate * (1 - 1e-12)))


def dirichlet_loglik(counts: Sequence[int], law: Sequence[float], concentration: float) -> float:
    """The log-likelihood of the draws where the distribution itself is drawn from a Dirichlet around `law`."""
    total = math.lgamma(concentration) - math.lgamma(concentration + sum(counts))
    for count, probability in zip(counts, law, strict=True):
        if count:
            if probability <= 0.0:
                return -math.inf
            total += math.lgamma(concentration * probability + count) - math.lgamma(concentration * probability)
    return total


def weigh(cell: Cell) -> Evidence:
    """A cell's evidence."""
    centre = loglik(cell.counts, cell.law)
    points = {name: loglik(cell.counts, other) for name, other in cell.stated.items()}
    others = {name: loglik(cell.counts, other) for name, other in cell.others.items()}
    if sum(cell.counts) > 1:  # of a single draw the Dirichlets' middle says no more than the law
        others |= {f"anything/{c:g}": dirichlet_loglik(cell.counts, cell.law, c) for c in CONCENTRATIONS}
    return Evidence(
        Score(largest_loglik(cell.counts, cell.low, cell.high), centre),
        {name: Score(value, value) for name, value in points.items()},
        others,
    )


def add(first: Evidence, second: Evidence) -> Evidence:
    """The evidence of both. A deviation that one of them doesn't have counts there as the law."""
    return Evidence(
        add_scores(first.law, second.law),
        {
            name: add_scores(first.stated.get(name, point(first)), second.stated.get(name, point(second)))
            for name in {**first.stated, **second.stated}
        },
        {
            name: first.others.get(name, first.law.mixed) + second.others.get(name, second.law.mixed)
            for name in {**first.others, **second.others}
        },
    )


def add_scores(first: Score, second: Score) -> Score:
    return Score(first.largest + second.largest, first.mixed + second.mixed)


def point(evidence: Evidence) -> Score:
    """The law as one distribution: the middle of its box."""
    return Score(evidence.law.mixed, evidence.law.mixed)


def combine(cells: Sequence[Cell]) -> Evidence:
    """The evidence of cells whose draws are independent given what came before."""
    return reduce(add, map(weigh, cells), Evidence())


def log_mean_exp(values: Sequence[float]) -> float:
    """log of the mean of e^v."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(v - top) for v in values) / len(values))


def log_e(evidence: Evidence) -> float:
    """log E against the law; inf where the law makes a draw impossible."""
    if evidence.law.largest == -math.inf:
        return math.inf
    against = [score.mixed for score in evidence.stated.values()] + list(evidence.others.values())
    return log_mean_exp(against) - evidence.law.largest


def remaining(evidence: Evidence, beta: float = BETA) -> list[str]:
    """The stated deviations that have not been rejected yet."""
    bound = -math.log(beta)
    law = evidence.law.mixed
    return [name for name, score in evidence.stated.items() if not rejects(law, score.largest, bound)]


def rejects(law: float, deviation: float, bound: float) -> bool:
    return law > -math.inf and (deviation == -math.inf or law - deviation >= bound)


def judge(evidence: Evidence, alpha: float, beta: float = BETA) -> Finding:
    """broken: the evidence against the law reaches 1/alpha. holds: every stated deviation is rejected."""
    if log_e(evidence) >= -math.log(alpha):
        return "broken"
    return "holds" if evidence.stated and not remaining(evidence, beta) else "open"


# ---- families of distributions


def family(logliks: Sequence[float], slack: float = 0.05) -> Score:
    """A hypothesis that is a family with a free number, from log-likelihoods at the points of its grid. slack: what
    the largest may lie between the points (the callers' steps bound it)."""
    return Score(max(logliks) + slack, log_mean_exp(logliks))


# ---- deviations that laws state


def odds_shifted(law: Sequence[float], chosen: Sequence[bool], size: float) -> Probabilities:
    """The odds of the chosen categories against the others, times e^size."""
    scaled = [p * math.exp(size) if one else p for p, one in zip(law, chosen, strict=True)]
    total = sum(scaled)
    return tuple(p / total for p in scaled)


def shifts(law: Sequence[float], size: float) -> dict[str, Probabilities]:
    """The odds of the likeliest 1, 2, 4, … categories against all others, times and divided by e^size: what a wrong
    temperature, a wrong penalty or a biased draw does. Sets that hold less than 5% or more than 95% are left out: to
    see them takes too many draws."""
    order = sorted(range(len(law)), key=lambda at: -law[at])
    made: dict[str, Probabilities] = {}
    size_of_set = 1
    while size_of_set < len(law):
        chosen = [at in order[:size_of_set] for at in range(len(law))]
        if 0.05 <= sum(p for p, one in zip(law, chosen, strict=True) if one) <= 0.95:
            for sign, word in ((1, "×"), (-1, "÷")):
                name = f"odds of the likeliest {size_of_set} {word} {math.exp(size):.2f}"
                made[name] = odds_shifted(law, chosen, sign * size)
        size_of_set *= 2
    return made


def tempered(law: Sequence[float], exponent: float) -> Probabilities:
    """p^exponent, normalised: the law at another temperature."""
    top = max(law)
    scaled = [(p / top) ** exponent if p > 0 else 0.0 for p in law]
    total = sum(scaled)
    return tuple(p / total for p in scaled)


def box(law: Sequence[float], tolerance: float) -> tuple[Probabilities, Probabilities]:
    """Bounds around a distribution: each probability within a factor e^±tolerance. A tolerance stands for the rounding
    of what is reported."""
    factor = math.exp(tolerance)
    return tuple(p / factor for p in law), tuple(min(1.0, p * factor) for p in law)


# ---- the run's error, split

# Each of at most so many statistical laws may spend an equal share; a law with several tests divides its own.
STATISTICAL_LAWS = 20
SHARE = ALPHA / STATISTICAL_LAWS
