"""The time of steps and of drafting, learned from the steps so far. Results follow from the inputs alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median

RIDGE = 1e-3  # relative, for the cost of drafts


class DraftTime:
    """Seconds that drafting takes: a time for each sequence that is asked and a time for each draft.

    They are least squares over the last hundred steps. If the steps can't tell the two apart, both get their share (a
    ridge).
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of asked², asked·drafts, drafts², asked·seconds, drafts·seconds
        self.costs = (0.0, 0.0)

    def add(self, asked: int, drafts: int, seconds: float) -> None:
        """Add the drafting time of one step."""
        new = (asked * asked, asked * drafts, drafts * drafts, asked * seconds, drafts * seconds)
        self._sums = [0.99 * old + more for old, more in zip(self._sums, new, strict=True)]
        aa, ad, dd, at, dt = self._sums
        aa, dd = aa + 1e-9, dd * (1.0 + RIDGE) + 1e-9
        det = aa * dd - ad * ad
        per_ask, per_draft = (dd * at - ad * dt) / det, (aa * dt - ad * at) / det
        if per_ask < 0.0:
            per_ask, per_draft = 0.0, dt / dd
        elif per_draft < 0.0:
            per_ask, per_draft = at / aa, 0.0
        self.costs = (per_ask, per_draft)


SAMPLES = 31  # Number of a node's last times that count.
SETTLED = 5  # From this many samples on, the median counts. Before, the smallest counts.
DRIFT = 0.1  # Share of a step's deviation that moves the level.
PLAIN = 3  # Plain steps of a size that must be seen before drafts are judged.
REFRESH = 256  # Steps after which a plain step of a size must be seen again.
FORGET = 2048  # Steps after which an unused node is dropped, and measured again.
FLAT = 0.02  # Share of a token's time that another token adds, until it is measured.


class StepTime:
    """Seconds of a step as a function of its tokens, from the steps so far.

    Nodes, four to an octave of token counts, hold the last times as multiples of a common level. The level follows what
    changes all times: texts that grow longer, another process that uses the cores. So times stay usable for sizes that
    did not occur for a while. Between nodes the curve is linear. It never falls (isotonic regression), since more
    tokens do not take less time.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._nodes: dict[tuple[int, bool], _Node] = {}
        self._curve: list[tuple[float, float]] = []
        self._steps = 0

    def settled(self, tokens: int) -> bool:
        """Return whether enough plain steps of about that size were recorded, the last one recently."""
        node = self._nodes.get((_round_size(tokens), True))
        return node is not None and len(node.times) >= PLAIN and self._steps - node.at < REFRESH

    def reach(self) -> int:
        """Return twice the largest size so far. Beyond it the curve is not reliable."""
        return round(2 * self._curve[-1][0]) if self._curve else 0

    def add(self, tokens: int, seconds: float, plain: bool) -> float:
        """Add the time of a step; tokens and seconds are > 0. plain: it had no drafts. Return the usual time of such
        steps."""
        self._steps += 1
        node = self._nodes.setdefault((_round_size(tokens), plain), _Node())
        node.at = self._steps
        if not self._level:
            self._level = seconds / _estimate_prior(tokens)
        if len(node.times) >= SETTLED:
            self._level *= min(2.0, max(0.5, seconds / self.estimate_steps(tokens, 0)[0])) ** DRIFT
        node.add(tokens, seconds / self._level)
        self._nodes = {key: node for key, node in self._nodes.items() if self._steps - node.at < FORGET}
        settled = [node for (_, plain), node in self._nodes.items() if len(node.times) >= (PLAIN if plain else SETTLED)]
        self._curve = _fit_isotonic(sorted((node.tokens, node.time, len(node.times)) for node in settled))
        return node.time * self._level

    def estimate_steps(self, tokens: int, more: int) -> list[float]:
        """Return the seconds of steps of tokens, tokens + 1, … tokens + more tokens. Before the first measurement they
        have another unit."""
        curve = self._curve or [(1.0, 1.0)]
        (first, first_s), (last, last_s) = curve[0], curve[-1]
        slope = (last_s - first_s) / (last - first) if last > first else last_s * FLAT / _estimate_prior(last)
        end = max(last, tokens + more) + 1.0
        xs = [0.0, *(x for x, _ in curve), end]
        ys = [
            first_s * _estimate_prior(0) / _estimate_prior(first),
            *(y for _, y in curve),
            last_s + slope * (end - last),
        ]
        out, level, at = list[float](), self._level or 1.0, max(1, bisect_left(xs, tokens))
        while (n := tokens + len(out)) <= tokens + more:
            while xs[at] < n:
                at += 1
            x, y = xs[at - 1], ys[at - 1]
            slope = (ys[at] - y) / (xs[at] - x)
            out += [(y + slope * (m - x)) * level for m in range(n, min(int(xs[at]), tokens + more) + 1)]
        return out


class _Node:
    """The last steps of about one size: their mean number of tokens, their times."""

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=SAMPLES)
        self.tokens = 0.0
        self.time = 0.0
        self.at = 0  # number of its last step

    def add(self, tokens: int, time: float) -> None:
        self.times.append(time)
        self.tokens += (tokens - self.tokens) / len(self.times)
        self.time = median(self.times) if len(self.times) >= SETTLED else min(self.times)


def _round_size(tokens: int) -> int:
    shift = max(0, tokens.bit_length() - 3)
    return tokens >> shift << shift


def _estimate_prior(tokens: float) -> float:
    return 1.0 + FLAT * tokens


def _fit_isotonic(points: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Return the isotonic regression of (x, y, weight), in the order of x: (x, y) with y rising. Neighbours that fall
    are pooled."""
    pools: list[tuple[float, float, list[float]]] = []  # the mean of y, its weight, the x
    for x, y, weight in points:
        pool = (y, float(weight), [x])
        while pools and pools[-1][0] >= pool[0]:
            y0, weight0, xs = pools.pop()
            total = weight0 + pool[1]
            pool = ((y0 * weight0 + pool[0] * pool[1]) / total, total, xs + pool[2])
        pools.append(pool)
    return [(x, y) for y, _, xs in pools for x in xs]
