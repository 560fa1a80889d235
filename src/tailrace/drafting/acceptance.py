"""Drafts so far → the rates at which drafts are accepted. Results follow from the inputs alone."""

from __future__ import annotations

from bisect import bisect_right

PRIOR_WEIGHT = 2.0  # weight, in observations, of what is known of all in what is known of one

# The scores between which drafts count as alike. Most drafts of a good drafter have scores near 1.
EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.97)


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

    def add_expected(self, place: int, probability: float) -> None:
        """Add a draft that was not verified, but would have been accepted with this probability."""
        (self.later if place else self.first).add(probability, 1.0)


class Calibration:
    """A drafter's scores → the share of accepted drafts among those with about this score, after accepted ones.

    Until drafts with such a score were verified, the share is the score itself.
    """

    def __init__(self) -> None:
        self._shares = [Ratio(memory=200.0) for _ in range(len(EDGES) + 1)]

    def add(self, score: float, accepted: bool) -> None:
        """Add a verified draft."""
        self._shares[bisect_right(EDGES, clip_score(score))].add(float(accepted), 1.0)

    def estimate(self, score: float) -> float:
        """Return the share for drafts with this score."""
        score = clip_score(score)
        return self._shares[bisect_right(EDGES, score)].apply_prior(score)


def clip_score(score: float) -> float:
    """Return the score within 0 … 1; 0 for NaN."""
    return min(1.0, max(0.0, score))
