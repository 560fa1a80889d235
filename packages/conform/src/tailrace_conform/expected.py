"""What each knob's definition makes of reported probabilities: the distributions that laws expect, and those that
servers with a known mistake would draw from. Pure functions.

Of the tokens that are not reported only the mass is known, so an expectation has bounds for it. Truncations are set so
that everything they keep is among the reported tokens, and so that their bound lies in the middle between two of them:
no rounding can move a token over it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace_conform.sequential import BETA, Cell, Evidence, box, combine, shifts
from tailrace_conform.spread import Key, Spread

LARGEST_VOCABULARY = 1 << 21  # bounds what tokens that are not reported may weigh at a high temperature
SEEN_BY = 3.0  # a deviation is stated if the budget's draws are so many times those that reject it on average


@dataclass(frozen=True)
class Expectation:
    """probabilities: of the usable keys, 0 where a key must never be drawn. rest: bounds of the mass of all else.
    stated: deviation → its probabilities and its rest. tolerance: see spread.py."""

    probabilities: Mapping[Key, float]
    rest: tuple[float, float]
    tolerance: float
    stated: Mapping[str, Expectation] = field(default_factory=dict)

    @property
    def rest_centre(self) -> float:
        low, high = self.rest
        return math.sqrt(low * high) if low > 0 else high / 2

    def vector(self) -> tuple[float, ...]:
        """One distribution within the bounds: of the keys in order, then of the rest."""
        rest = self.rest_centre
        total = sum(self.probabilities.values())
        return (*(p / total * (1 - rest) for p in self.probabilities.values()), rest)


def conditional(vector: Sequence[float]) -> tuple[float, ...]:
    """The probabilities of the keys, given that it is one of them."""
    mass = sum(vector[:-1])
    return tuple(p / mass for p in vector[:-1])


def split(vector: Sequence[float]) -> tuple[float, float]:
    """Whether it is one of the keys."""
    return 1.0 - vector[-1], vector[-1]


def cells(expected: Expectation, counts: Mapping[Key | None, int], draws: int, size: float) -> list[Cell]:
    """Two cells: whether a key was drawn, and which.

    draws: that the budget has; deviations that need more are not stated. size: of the odds ratios that are, as a
    logarithm.
    """
    law = expected.vector()
    drawn = [counts.get(key, 0) for key in expected.probabilities]
    low, high = expected.rest
    factor = math.exp(expected.tolerance)
    low, high = low / factor, min(1.0, high * factor)
    deviations = {name: other.vector() for name, other in expected.stated.items()}
    deviations |= {
        name: (*(p * (1 - law[-1]) for p in other), law[-1]) for name, other in shifts(conditional(law), size).items()
    }
    deviations = {name: other for name, other in deviations.items() if draws_to_reject(law, other) * SEEN_BY <= draws}
    either = {name: split(other) for name, other in deviations.items()}
    whether = Cell((sum(drawn), counts.get(None, 0)), split(law), (1 - high, low), (1 - low, high), either)
    inside = conditional(law)
    which = {name: conditional(other) for name, other in deviations.items()}
    return [whether, Cell(tuple(drawn), inside, *box(inside, expected.tolerance), which)]


def weigh_counts(expected: Expectation, counts: Mapping[Key | None, int], draws: int, size: float) -> Evidence:
    """The evidence of counts of independent draws."""
    return combine(cells(expected, counts, draws, size))


def draws_to_reject(law: Sequence[float], deviation: Sequence[float]) -> float:
    """How many draws of the law it takes on average to reject a deviation: log(1/BETA) over their divergence."""
    divergence = sum(p * math.log(p / q) if q > 0 else math.inf for p, q in zip(law, deviation, strict=True) if p > 0)
    if divergence == math.inf:  # the first draw of what the deviation forbids
        return -math.log(BETA) / sum(p for p, q in zip(law, deviation, strict=True) if p > 0 and q <= 0)
    return -math.log(BETA) / divergence if divergence > 0 else math.inf


# ---- the knobs


def neutral(spread: Spread) -> Expectation:
    """Without any knob: what is reported."""
    unusable = sum(p for p, one in zip(spread.probabilities, spread.usable, strict=True) if not one)
    rest = spread.rest + unusable
    return Expectation(usable(spread, spread.probabilities), (rest, rest), spread.tolerance)


def usable(spread: Spread, values: Sequence[float]) -> dict[Key, float]:
    return {key: value for key, value, one in zip(spread.keys, values, spread.usable, strict=True) if one}


def at_temperature(spread: Spread, temperature: float) -> Expectation:
    """p^(1/T). No token of the rest is likelier than the last reported one: that bounds what the rest may become."""
    power = 1.0 / temperature
    scaled = [p**power for p in spread.probabilities]
    least, rest = min(spread.probabilities), spread.rest
    same = rest * least ** (power - 1.0)  # all of the rest as likely as the last reported token
    spread_out = rest**power * LARGEST_VOCABULARY ** (1.0 - power)  # as many tokens as there may be
    bounds = (spread_out, same) if power > 1 else (same, max(same, spread_out))
    low, high = (bound + sum(s for s, one in zip(scaled, spread.usable, strict=True) if not one) for bound in bounds)
    known = usable(spread, scaled)
    total = sum(known.values())
    scale = math.exp(spread.tolerance * abs(power - 1.0))  # rounding is multiplied by 1/T
    return Expectation(
        known,
        (low / (low + total) / scale, min(1.0, high / (high + total) * scale)),
        spread.tolerance * max(1.0, power),
    )


def kept(spread: Spread, size: int, power: float = 1.0) -> Expectation:
    """Only the `size` likeliest, at temperature 1/power."""
    scaled = [p**power if at < size else 0.0 for at, p in enumerate(spread.probabilities)]
    total = sum(scaled)
    outside = sum(s for s, one in zip(scaled, spread.usable, strict=True) if not one) / total
    return Expectation(
        usable(spread, [s / total for s in scaled]), (outside, outside), spread.tolerance * max(1.0, power)
    )


def truncated(spread: Spread, size: int) -> Expectation:
    """As `kept`, told from a token fewer, a token more, and no truncation at all."""
    others = {
        "one token fewer": kept(spread, size - 1),
        "one token more": kept(spread, size + 1),
        "no effect": neutral(spread),
    }
    return replace(kept(spread, size), stated=others)


def nucleus_size(probabilities: Sequence[float], top_p: float) -> int:
    """How many tokens the smallest prefix with this mass has."""
    mass = 0.0
    for size, probability in enumerate(probabilities, 1):
        mass += probability
        if mass >= top_p:
            return size
    return len(probabilities) + 1


def clear_size(spread: Spread, width: Callable[[Spread, int], float]) -> int | None:
    """How many tokens a truncation should keep: a size whose bound no rounding moves over a token, with likely tokens
    on both sides of it. width: how far the bound may move, in units of the tolerance. None: there is no such size."""
    given = spread.probabilities
    fit = [size for size in range(2, len(given)) if width(spread, size) > 2 * spread.tolerance]
    return max(
        (size for size in fit if size > 2),
        key=lambda size: min(given[size - 1 : size + 1]),
        default=fit[0] if fit else None,
    )


def rank_width(spread: Spread, size: int) -> float:
    """top_k: the last token that is kept and the first that is not may not change places."""
    return math.log(spread.probabilities[size - 1] / spread.probabilities[size])


def ratio_width(spread: Spread, size: int) -> float:
    """min_p, set between these two."""
    return rank_width(spread, size) / 2


def mass_width(spread: Spread, size: int) -> float:
    """top_p, set in the middle of what the last token adds: rounding of each logprob by t moves the odds of the mass by
    a factor of at most e^2t."""
    return edge(spread.probabilities, size, middle(spread.probabilities, size))


def middle(probabilities: Sequence[float], size: int) -> float:
    """The top_p that keeps `size` tokens and is farthest from keeping another number."""
    return sum(probabilities[: size - 1]) + probabilities[size - 1] / 2


def edge(probabilities: Sequence[float], size: int, top_p: float) -> float:
    """How far the log-odds of the mass may move until top_p keeps another number of tokens than `size`, halved."""
    before, after = sum(probabilities[: size - 1]), sum(probabilities[:size])
    return min(log_odds(after) - log_odds(top_p), log_odds(top_p) - log_odds(before)) / 2


def log_odds(mass: float) -> float:
    if mass <= 0.0 or mass >= 1.0:
        return math.copysign(math.inf, mass - 0.5)
    return math.log(mass / (1.0 - mass))
