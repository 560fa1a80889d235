"""How many drafts of each sequence a step is to have: those that are worth their time.

A step's rate is its tokens over its time. A draft adds the probability of its survival to the tokens, and its position
adds time. So positions are given to the drafts that most likely survive, whoever's they are.

`maximize_rate` chooses before drafts are made, from rates of acceptance. It looks at every number of drafts.

`select_drafts` chooses among drafts that have been made and scored. Whether a draft is kept must not depend on which
token was drawn for it, or the law of rejection and block verification would be lost: unlikely draws would be dropped
instead of rejected. A draft's survival depends on the drafts before it and on its own distribution, as scores do
(drafting/base.py). And the search stops for good at the first draft that does not raise the rate, so a draft never
depends on those behind it. If every further position costs at least as much as the one before, no later draft would
raise the rate either. The measured times are made convex for that (their greatest convex minorant). So the result is
the best step on this convex curve, and not always on the measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The time that drafts take, in seconds.

    - step_s: of the step's pass with 0, 1, … drafts. base_s: the step's time besides.
    - ask_s: for each sequence that is asked. draft_s: for each draft. delay_s: if any sequence is asked.
    - kept: the share of the drafts that will be verified.
    """

    step_s: Sequence[float]
    base_s: float
    ask_s: float
    draft_s: float
    delay_s: float
    kept: float


def maximize_rate(
    rates: Sequence[tuple[float, float]], most: Sequence[int], ready: Sequence[float], costs: DraftCosts
) -> list[int]:
    """Return how many drafts of each sequence give the most tokens per second.

    Drafts are charged the time that they add, as far as such drafts are verified.

    Args:
        rates: p and q of each sequence: its drafts survive with the probabilities p, p·q, p·q², …
        most: the most drafts of each.
        ready: how often the drafter has drafts for each.
    """
    gains, left = list[tuple[float, int, int]](), 0.0  # left: gained by the drafts that were not looked at yet
    for place, (gain, later) in enumerate(rates):
        for at in range(most[place]):
            gains.append((-gain, place, at))
            left += gain * ready[place]
            gain *= later
    gains.sort()
    step_s, kept, draft_s = costs.step_s, costs.kept, costs.draft_s
    limit, base_s = len(step_s) - 1, costs.base_s + costs.delay_s
    tokens, drafts = float(len(rates)), 0.0
    best, taken = tokens / (costs.base_s + step_s[0]), 0
    for number, (negative, place, at) in enumerate(gains, 1):
        chance = ready[place]
        gained = -negative * chance
        tokens, left, drafts = tokens + gained, left - gained, drafts + chance
        verified = drafts * kept
        if (m := int(verified)) >= limit:
            break
        if not at:
            base_s += costs.ask_s
        seconds = base_s + step_s[m] + (verified - m) * (step_s[m + 1] - step_s[m]) + draft_s * drafts
        if tokens > best * seconds:
            best, taken = tokens / seconds, number
        elif tokens + left <= best * seconds:  # more drafts never take less time
            break
    counts = [0] * len(rates)
    for _, place, _ in gains[:taken]:
        counts[place] += 1
    return counts


def multiply_chances(shares: Sequence[float], factor: float) -> list[float]:
    """Return the probabilities that the first drafts, one, two, …, are all accepted. Each is accepted after the ones
    before with its share times the factor, at most 1."""
    chance, chances = 1.0, list[float]()
    for share in shares:
        if (own := share * factor) < 1.0:
            chance *= own
        chances.append(chance)
    return chances


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
    order = [(-chance, place, at) for place, row in enumerate(survival) for at, chance in enumerate(row)]
    order.sort()
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
