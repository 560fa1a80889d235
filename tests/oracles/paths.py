"""Exact laws of randomised code: run it once for every way its decisions can fall, and add up the masses. No sampling,
no tolerance but rounding.

The code under test gets its randomness from `Choices`: a uniform number that is only ever compared, and draws from
given weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence


class Choices:
    """One run's decisions: those of `prefix` as given, the first possible one after that."""

    def __init__(self, prefix: tuple[int, ...]) -> None:
        self.prefix, self.taken = prefix, ()
        self.mass = 1.0
        self.others: list[tuple[int, ...]] = []

    def pick(self, weights: Sequence[float]) -> int:
        """An index, with probability in proportion to its weight."""
        total, at = sum(weights), len(self.taken)
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        if at < len(self.prefix):
            i = self.prefix[at]
        else:
            i = possible[0]
            self.others += [(*self.taken, other) for other in possible[1:]]
        self.taken = (*self.taken, i)
        self.mass *= weights[i] / total
        return i


class Uniform:
    """scale · U with U uniform in (0, 1): it can be scaled, and compared once."""

    def __init__(self, choices: Choices, scale: float = 1.0) -> None:
        self.choices, self.scale = choices, scale

    def __mul__(self, by: float) -> Uniform:
        return Uniform(self.choices, self.scale * by)

    def __lt__(self, bound: float) -> bool:
        p = min(1.0, max(0.0, bound / self.scale)) if self.scale > 0 else float(bound > 0)
        return self.choices.pick([p, 1.0 - p]) == 0

    __le__ = __lt__


def law_of(run: Callable[[Choices], Hashable]) -> dict[Hashable, float]:
    """Outcome → probability, over all paths."""
    law: dict[Hashable, float] = defaultdict(float)
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        choices = Choices(waiting.pop())
        outcome = run(choices)
        law[outcome] += choices.mass
        waiting += choices.others
    return dict(law)
