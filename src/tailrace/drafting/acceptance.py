"""Drafts so far → the rates at which drafts are accepted. Results follow from the inputs alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

PRIOR_WEIGHT = 2.0  # weight, in observations, of what is known of all in what is known of one

# The scores between which drafts count as alike. Most drafts of a good drafter have scores near 1.
EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.97)
KNOWN = 4096  # shares that are kept; the scores of copies are few numbers


class Ratio:
    """A ratio of sums. Each observation weighs (1 − 1/memory) times as much as the next one. Without observations it is
    0.
    """

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self.above, self.below = 0.0, 0.0

    def add(self, above: float, below: float) -> None:
        """Add an observation."""
        self.above = self.above * self._keep + above
        self.below = self.below * self._keep + below

    @property
    def value(self) -> float:
        """above / below."""
        return self.above / self.below if self.below else 0.0

    def apply_prior(self, prior: float) -> float:
        """Return the ratio with PRIOR_WEIGHT observations of `prior` added."""
        return (self.above + PRIOR_WEIGHT * prior) / (self.below + PRIOR_WEIGHT)


class Acceptance:
    """Acceptance rates: of first drafts, and of later drafts after accepted ones."""

    def __init__(self, memory: float) -> None:
        self.first, self.later = Ratio(memory), Ratio(memory)

    def add(self, offered: int, accepted: int) -> None:
        """Add the drafts of a step, of which the first `accepted` were accepted."""
        if offered:
            self.first.add(float(accepted > 0), 1.0)
        if (trials := min(offered - 1, accepted)) > 0:
            self.later.add(accepted - 1.0, trials)

    @property
    def rates(self) -> tuple[float, float]:
        """The rates of first and of later drafts."""
        return self.first.value, self.later.value

    def add_expected(self, place: int, probability: float) -> None:
        """Add a draft that was not verified, but would have been accepted with this probability."""
        (self.later if place else self.first).add(probability, 1.0)


class Calibration:
    """A drafter's scores → the share of accepted drafts among those with about this score, after accepted ones.

    Until drafts with such a score were verified, the share is the score itself.
    """

    def __init__(self) -> None:
        self._shares = [Ratio(memory=200.0) for _ in range(len(EDGES) + 1)]
        self._known: dict[float, float] = {}  # shares of scores, until the next draft is added

    def add(self, score: float, accepted: bool) -> None:
        """Add a verified draft."""
        if self._known:
            self._known.clear()
        self._shares[bisect_right(EDGES, clip_score(score))].add(float(accepted), 1.0)

    def estimate_all(self, scores: Sequence[float]) -> list[float]:
        """Return the share for drafts with each of these scores."""
        known = self._known
        return [known[score] if score in known else self.estimate(score) for score in scores]

    def estimate(self, score: float) -> float:
        """Return the share for drafts with this score."""
        if (share := self._known.get(score)) is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            clipped = clip_score(score)
            share = self._known[score] = self._shares[bisect_right(EDGES, clipped)].apply_prior(clipped)
        return share


def clip_score(score: float) -> float:
    """Return the score within 0 … 1; 0 for NaN."""
    return min(1.0, max(0.0, score))
