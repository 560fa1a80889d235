"""What the engine has counted, as Prometheus metrics: read when asked, about a second old.

A restarted engine's counters begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tailrace.api.gateway_metrics import collect_gateway
from tailrace.api.histogram import accumulate_buckets
from tailrace.wire.messages import DURATION_EDGES_S, ModelInfo, Stats

# name, help, value
GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("tailrace_num_requests_running", "Sequences that hold a slot.", lambda s: s.running),
    ("tailrace_num_requests_waiting", "Sequences that wait for a slot.", lambda s: s.waiting),
    ("tailrace_num_slots", "Slots of the engine.", lambda s: s.slots_total),
    ("tailrace_num_slots_used", "Slots that are in use.", lambda s: s.slots_used),
    (
        "tailrace_kv_cache_usage_ratio",
        "Share of the KV cache's blocks that running sequences hold, 0 to 1.",
        lambda s: s.blocks_used / s.blocks_total if s.blocks_total else 0.0,
    ),
)
COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("tailrace_prompt_tokens", "Prompt tokens accepted.", lambda s: s.prompt_tokens),
    ("tailrace_prompt_tokens_cached", "Prompt tokens that came from the prefix cache.", lambda s: s.cached_tokens),
    ("tailrace_generation_tokens", "Tokens generated.", lambda s: s.generated_tokens),
    (
        "tailrace_num_preemptions",
        "Sequences that were preempted: they gave back their blocks.",
        lambda s: s.preemptions,
    ),
    ("tailrace_num_rewinds", "Times a sequence went back because a banned string was complete.", lambda s: s.rewinds),
    ("tailrace_spec_draft_tokens", "Tokens that a drafter, or a prediction, proposed.", lambda s: s.drafted_tokens),
    ("tailrace_spec_accepted_tokens", "Draft tokens accepted.", lambda s: s.accepted_tokens),
    ("tailrace_engine_steps", "Steps of the engine.", lambda s: s.steps),
)
# name, help, label, the values of the label
LABELLED: tuple[tuple[str, str, str, Callable[[Stats], Mapping[str, float]]], ...] = (
    ("tailrace_bad_logits_rows", "Rows of logits that could not be sampled from.", "status", lambda s: s.bad_rows),
    (
        "tailrace_spec_draft_tokens_per_position",
        "Draft tokens proposed, by their place in the draft.",
        "position",
        lambda s: by_place(s.drafted_at),
    ),
    (
        "tailrace_spec_accepted_tokens_per_position",
        "Draft tokens accepted, by their place in the draft.",
        "position",
        lambda s: by_place(s.accepted_at),
    ),
    (
        "tailrace_decode_steps",
        "Steps without prefills: those that verify drafts, and plain ones.",
        "kind",
        lambda s: s.decode_steps,
    ),
    (
        "tailrace_decode_step_seconds",
        "Time of these steps, from the forward pass to the sampled tokens.",
        "kind",
        lambda s: in_seconds(s.decode_ms),
    ),
    ("tailrace_engine_step_seconds", "Time spent in each part of the step.", "part", lambda s: in_seconds(s.step_ms)),
)


class EngineCollector(Collector):
    """The engine's gauges, counters and histograms.

    Args:
        stats: the latest counters. ready: the engine can serve. stalls: how often a step was seen to take too long.
        info: of the engine's model; None before the engine is ready. asleep: it sleeps, or is loaded again.
    """

    def __init__(
        self,
        stats: Callable[[], Stats],
        ready: Callable[[], bool],
        stalls: Callable[[], int],
        info: Callable[[], ModelInfo | None],
        asleep: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stats, self._ready, self._stalls, self._info, self._asleep = stats, ready, stalls, info, asleep

    def describe(self) -> list[Metric]:
        """Nothing: duplicates are not looked for before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        stats = self._stats()
        yield GaugeMetricFamily("tailrace_engine_ready", "1 while the engine can serve.", value=float(self._ready()))
        asleep = "1 while the model sleeps, and until it is loaded again."
        yield GaugeMetricFamily("tailrace_engine_sleeping", asleep, value=float(self._asleep()))
        for name, text, value in GAUGES:
            yield GaugeMetricFamily(name, text, value=value(stats))
        for name, text, value in COUNTERS:
            yield CounterMetricFamily(name, text, value=value(stats))
        stalls = "Times a step took longer than --stall-s, as this front end saw it."
        yield CounterMetricFamily("tailrace_engine_stalls", stalls, value=self._stalls())
        for name, text, label, values in LABELLED:
            family = CounterMetricFamily(name, text, labels=[label])
            for key, value in values(stats).items():
                family.add_metric([key], value)
            yield family
        yield from collect_durations(stats)
        yield from collect_gateway(stats, self._info())


def by_place(counts: Sequence[int]) -> dict[str, float]:
    """Counts by their place, from 0."""
    return {str(place): count for place, count in enumerate(counts)}


def in_seconds(total_ms: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds → seconds."""
    return {name: value / 1e3 for name, value in total_ms.items()}


def collect_durations(stats: Stats) -> Iterator[Metric]:
    """Histograms of the engine's turns and of the parts of its steps; empty before the engine has sent its counters."""
    turns = HistogramMetricFamily(
        "tailrace_engine_turn_duration_seconds",
        "A turn of the engine's thread: receive messages, run a step, send its messages.",
    )
    if stats.turn_counts:
        turns.add_metric([], accumulate_buckets(DURATION_EDGES_S, stats.turn_counts), stats.turn_ms / 1e3)
    yield turns
    parts = HistogramMetricFamily(
        "tailrace_engine_step_duration_seconds", "Each part of a step, and of the turn around it.", labels=["part"]
    )
    for part, counts in stats.step_counts.items():
        parts.add_metric([part], accumulate_buckets(DURATION_EDGES_S, counts), stats.step_ms.get(part, 0.0) / 1e3)
    yield parts
