"""Drafts of a step, with the probability that each survives verification → which of them are verified.

A step's rate is its tokens over its time. A verified draft adds the probability of its survival to the tokens, and its
position adds time. So positions are given to the drafts that most likely survive, whoever's they are, for as long as
each raises the rate. If every further position costs at least as much as the one before, this is the best step: once a
draft doesn't pay, no later one does. The measured times are made convex for that (their greatest convex minorant).

Whether a draft is kept must not depend on which token was drawn for it, or the law of rejection and block verification
would be lost: unlikely draws would be dropped instead of rejected. A draft's survival depends on the drafts before it
and on its own distribution, as scores do (drafting/base.py). And the search stops for good at the first draft that does
not pay, so a draft never depends on those behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def select_drafts(survival: Sequence[Sequence[float]], tokens: float, seconds: float, step_s: list[float]) -> list[int]:
    """Return how many drafts of each sequence to verify, from its first on.

    Args:
        survival: of each sequence, the probabilities that its first drafts, one, two, …, are all accepted. They don't
            rise.
        tokens, seconds: of the step without these drafts.
        step_s: the time of the step's pass with 0, 1, … of these drafts, for all of them.
    """
    counts = [0] * len(survival)
    costs = find_convex_costs(step_s)
    order = sorted((-chance, place, at) for place, row in enumerate(survival) for at, chance in enumerate(row))
    for (negative, place, at), cost in zip(order, costs, strict=False):
        if -negative * seconds <= tokens * cost:
            break
        tokens, seconds, counts[place] = tokens - negative, seconds + cost, at + 1
    return counts


def find_convex_costs(step_s: Sequence[float]) -> list[float]:
    """Return what each further position costs, by the greatest convex curve that is nowhere above these times."""
    pools: list[tuple[float, int]] = []  # the sum of neighbouring costs, and their number; means rise
    for before, after in pairwise(step_s):
        total, count = after - before, 1
        while pools and pools[-1][0] * count > total * pools[-1][1]:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
