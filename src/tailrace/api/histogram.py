"""A Prometheus histogram that is cheap to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class FastHistogram(Collector):
    """Counts durations. For gaps between tokens, of which there are thousands a second.

    Args:
        edges_s: upper edges of its buckets.
    """

    def __init__(self, name: str, text: str, edges_s: Sequence[float]) -> None:
        self._name, self._text, self._edges_s = name, text, edges_s
        self._counts = [0] * (len(edges_s) + 1)
        self._total_s = 0.0

    def observe(self, duration_s: float, times: int = 1) -> None:
        """Count a duration `times` times."""
        self._counts[bisect_left(self._edges_s, duration_s)] += times
        self._total_s += duration_s * times

    def collect(self) -> Iterator[Metric]:
        """The family; each bucket counts all smaller durations as well."""
        found = HistogramMetricFamily(self._name, self._text)
        found.add_metric([], accumulate_buckets(self._edges_s, self._counts), self._total_s)
        yield found


def accumulate_buckets(edges_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """As Prometheus has it: (upper edge, how many are not above it)."""
    return list(zip([*map(str, map(float, edges_s)), "+Inf"], accumulate(counts), strict=True))
