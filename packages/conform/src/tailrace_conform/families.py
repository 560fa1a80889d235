"""Hypotheses with one unknown number: a law that says how something moves, but not from where.

The unknown runs over a grid. What the grid's steps leave out is added to the tolerance, so that the law's largest
likelihood is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tailrace_conform.sequential import (
    Evidence,
    Probabilities,
    Score,
    box,
    dirichlet_loglik,
    largest_loglik,
    log_mean_exp,
    loglik,
)

Counts = Sequence[int]
# Of a value of the unknown: the distribution of each of the groups of draws.
Member = Callable[[float], Sequence[Probabilities]]
# Of a value of the unknown: of each group, how far the logprobs may be off, half a step of the grid included.
Tolerances = Callable[[float], Sequence[float]]


def score(groups: Sequence[Counts], member: Member, grid: Sequence[float], tolerances: Tolerances) -> Score:
    """The family's score. A member's largest likelihood in its box exceeds that of its middle by at most the tolerance
    per draw, so most members need no search."""
    middles = {at: sum(map(loglik, groups, member(at))) for at in grid}
    sizes = [sum(counts) for counts in groups]
    bounds = {
        at: value + sum(tolerance * size for tolerance, size in zip(tolerances(at), sizes, strict=True))
        for at, value in middles.items()
    }
    largest = -math.inf
    for at, bound in sorted(bounds.items(), key=lambda one: -one[1]):
        if bound <= largest or bound == -math.inf:
            break
        inside = sum(
            largest_loglik(counts, *box(law, tolerance)) if tolerance else loglik(counts, law)
            for counts, law, tolerance in zip(groups, member(at), tolerances(at), strict=True)
        )
        largest = max(largest, inside)
    return Score(largest, log_mean_exp(list(middles.values())))


def weigh_families(
    groups: Sequence[Counts],
    law: Member,
    stated: Mapping[str, Member],
    grid: Sequence[float],
    tolerances: Tolerances,
) -> Evidence:
    """The evidence of groups of draws that share the unknown. What is stated has a grid point's likelihood at best: a
    deviation is no box."""
    others = {
        f"anything/{c:g}": sum(dirichlet_loglik(counts, [1 / len(counts)] * len(counts), c) for counts in groups)
        for c in (1.0, 8.0)
    }
    return Evidence(
        score(groups, law, grid, tolerances),
        {name: score(groups, one, grid, lambda at: [0.0] * len(groups)) for name, one in stated.items()},
        others,
    )


def steps(low: float, high: float, step: float) -> list[float]:
    """low, low + step, …, high."""
    return [low + step * at for at in range(round((high - low) / step) + 1)]


def logistic(value: float) -> Probabilities:
    """Of a thing with these log-odds: its probability, and that of all else."""
    yes = 1.0 / (1.0 + math.exp(-value)) if value > -700 else 0.0
    return yes, 1.0 - yes
