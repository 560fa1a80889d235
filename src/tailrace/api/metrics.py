"""What /metrics tells, in a Prometheus registry of its own. Latencies are measured here, where the client feels them;
load and cache come from the engine's own counters, about a second old.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailrace.wire.messages import DURATION_EDGES_S, Stats

FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
END_TO_END_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class Metrics:
    """Counters and histograms that the front end keeps of one model.

    Attributes:
        engine: what the model's engine has counted.
    """

    def __init__(
        self,
        stats: Callable[[], Stats],
        ready: Callable[[], bool],
        wasted: Callable[[], int],
        stalls: Callable[[], int] = lambda: 0,
    ) -> None:
        self.engine = EngineCollector(stats, ready, stalls)
        self._registry = CollectorRegistry()
        self._registry.register(Wasted(wasted))
        self.time_to_first_token = Histogram(
            "tailrace_time_to_first_token_seconds",
            "From the request's arrival to its first token, per prompt.",
            buckets=FIRST_TOKEN_S,
            registry=self._registry,
        )
        self.inter_token_latency = Gaps(
            "tailrace_inter_token_latency_seconds",
            "Between two tokens of a sequence; tokens of one event share the gap.",
            BETWEEN_TOKENS_S,
        )
        self._registry.register(self.inter_token_latency)
        self.queue_time = Histogram(
            "tailrace_request_queue_time_seconds",
            "From a prompt's arrival at the engine until it was given a slot.",
            buckets=FIRST_TOKEN_S,
            registry=self._registry,
        )
        self.e2e_latency = Histogram(
            "tailrace_e2e_request_latency_seconds",
            "From the request's arrival to its last token.",
            buckets=END_TO_END_S,
            registry=self._registry,
        )
        self.finished = Counter(
            "tailrace_request_finished_total",
            "Sequences that ended, by finish reason.",
            ["finish_reason"],
            registry=self._registry,
        )
        self.failed = Counter(
            "tailrace_request_failed_total",
            "Requests that ended with an error, by its code.",
            ["code"],
            registry=self._registry,
        )
        self.aborted = Counter(
            "tailrace_request_aborted_total",
            "Aborts sent to the engine, by cause.",
            ["cause"],
            registry=self._registry,
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """One more gauge, read when asked."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def collect(self) -> Iterator[Metric]:
        """What this front end has counted of the model."""
        return iter(self._registry.collect())


class Exposition:
    """All of a front end's metrics, as Prometheus' text: of each model, and of the front end itself.

    Args:
        models: name → its metrics; their samples have the label `model_name`, but for a model without a name.
    """

    def __init__(self, models: Mapping[str, Metrics]) -> None:
        self._models, self._registry = models, CollectorRegistry()
        self.event_loop_lag = Gaps(
            "tailrace_event_loop_lag_seconds",
            "How much later than asked a timer of the front end's event loop fires: what others wait while one request is looked at.",
            DURATION_EDGES_S,
        )
        self._registry.register(self.event_loop_lag)
        self._registry.register(Labelled(lambda: {name: metrics.collect() for name, metrics in models.items()}))

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """One more gauge of this front end, read when asked."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def own(self) -> bytes:
        """What this front end has counted, as text."""
        return generate_latest(self._registry)

    def expose(self, counted: Sequence[bytes] = ()) -> bytes:
        """What the engines and the front ends have counted, as text. counted: what each front end's `own` says; none: this one's."""
        whole = CollectorRegistry()
        whole.register(Labelled(lambda: {name: metrics.engine.collect() for name, metrics in self._models.items()}))
        whole.register(Sum(counted or [self.own()]))
        return generate_latest(whole)


class Labelled(Collector):
    """The families of several models, each once, their samples told apart by `model_name`.

    Args:
        families: name → what is told of this model, read when asked.
    """

    def __init__(self, families: Callable[[], Mapping[str, Iterator[Metric]]]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing to check for duplicates before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Each family once."""
        found: dict[str, Metric] = {}
        for model, families in self._families().items():
            label = {"model_name": model} if model else {}
            for family in families:
                family.samples = [s._replace(labels={**s.labels, **label}) for s in family.samples]
                if family.name in found:
                    found[family.name].samples += family.samples
                else:
                    found[family.name] = family
        yield from found.values()


class Gaps(Collector):
    """A histogram that is cheap to add to: of the gaps between tokens there are thousands a second.

    Args:
        edges_s: upper edges of its buckets.
    """

    def __init__(self, name: str, text: str, edges_s: Sequence[float]) -> None:
        self._name, self._text, self._edges_s = name, text, edges_s
        self._counts = [0] * (len(edges_s) + 1)
        self._total_s = 0.0

    def observe(self, gap_s: float, times: int = 1) -> None:
        """So many gaps of this length."""
        self._counts[bisect_left(self._edges_s, gap_s)] += times
        self._total_s += gap_s * times

    def collect(self) -> Iterator[Metric]:
        """As Prometheus has it: each bucket counts all that are smaller as well."""
        found = HistogramMetricFamily(self._name, self._text)
        found.add_metric([], buckets(self._edges_s, self._counts), self._total_s)
        yield found


def buckets(edges_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    """As Prometheus has it: (upper edge, how many are not above it)."""
    return list(zip([*map(str, map(float, edges_s)), "+Inf"], accumulate(counts), strict=True))


class Sum(Collector):
    """Counters and histograms of several front ends, added up."""

    def __init__(self, counted: Sequence[bytes]) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        """Each family once."""
        families: dict[str, Metric] = {}
        totals: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for text in self._counted:
            for family in text_string_to_metric_families(text.decode()):
                families.setdefault(family.name, family)
                for sample in family.samples:
                    name = (sample.name, frozenset(sample.labels.items()))
                    if name not in totals and family is not families[family.name]:
                        families[family.name].samples.append(sample)
                    # when it was created is a time: the earliest counts
                    add = min if sample.name.endswith("_created") else float.__add__
                    totals[name] = add(totals[name], sample.value) if name in totals else sample.value
        yield GaugeMetricFamily("tailrace_front_ends", "Front ends that have been counted.", value=len(self._counted))
        for family in families.values():
            family.samples = [s._replace(value=totals[s.name, frozenset(s.labels.items())]) for s in family.samples]
            yield family


class Wasted(Collector):
    """Tokens drawn in vain."""

    def __init__(self, wasted: Callable[[], int]) -> None:
        self._wasted = wasted

    def collect(self) -> Iterator[Metric]:
        """The count."""
        text = "Tokens drawn after a stop that only the front end could find."
        yield CounterMetricFamily("tailrace_wasted_tokens", text, value=self._wasted())


class EngineCollector(Collector):
    """The engine's gauges and counters, read when asked. A restarted engine's counters begin at 0 again."""

    def __init__(self, stats: Callable[[], Stats], ready: Callable[[], bool], stalls: Callable[[], int]) -> None:
        self._stats, self._ready, self._stalls = stats, ready, stalls

    def describe(self) -> list[Metric]:
        """Nothing to check for duplicates before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Gauges, then counters, then the time of each part of the step."""
        stats = self._stats()
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        for name, text, value in (
            ("tailrace_engine_ready", "1 while the engine can serve.", float(self._ready())),
            ("tailrace_num_requests_running", "Sequences that hold a slot.", stats.running),
            ("tailrace_num_requests_waiting", "Sequences that wait for a slot.", stats.waiting),
            ("tailrace_num_slots", "Slots there are.", stats.slots_total),
            ("tailrace_num_slots_used", "Slots that somebody holds.", stats.slots_used),
            ("tailrace_kv_cache_usage_ratio", "Share of KV cache blocks held by running sequences, 0 … 1.", usage),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("tailrace_prompt_tokens", "Prompt tokens accepted.", stats.prompt_tokens),
            ("tailrace_prompt_tokens_cached", "Prompt tokens that came from the prefix cache.", stats.cached_tokens),
            ("tailrace_generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("tailrace_num_preemptions", "Sequences that had to give back their blocks.", stats.preemptions),
            ("tailrace_num_rewinds", "Times a sequence backed up because a banned string was complete.", stats.rewinds),
            ("tailrace_spec_draft_tokens", "Tokens guessed ahead.", stats.drafted_tokens),
            ("tailrace_spec_accepted_tokens", "Tokens guessed ahead that stood.", stats.accepted_tokens),
            ("tailrace_engine_steps", "Steps of the engine.", stats.steps),
            (
                "tailrace_engine_stalls",
                "Times a step took longer than --stall-s, as this front end saw it.",
                self._stalls(),
            ),
        ):
            yield CounterMetricFamily(name, text, value=value)
        bad = CounterMetricFamily(
            "tailrace_bad_logits_rows", "Rows of logits that could not be sampled from.", labels=["status"]
        )
        for status, count in stats.bad_rows.items():
            bad.add_metric([status], count)
        yield bad
        for name, counts in (("draft", stats.drafted_at), ("accepted", stats.accepted_at)):
            places = CounterMetricFamily(
                f"tailrace_spec_{name}_tokens_per_position",
                "The same by their place in the draft.",
                labels=["position"],
            )
            for place, count in enumerate(counts):
                places.add_metric([str(place)], count)
            yield places
        for name, text, values in (
            ("tailrace_decode_steps", "Steps without prefills, with guesses to verify or plain.", stats.decode_steps),
            (
                "tailrace_decode_step_seconds",
                "Time of these from the forward pass to the draws.",
                {kind: total_ms / 1e3 for kind, total_ms in stats.decode_ms.items()},
            ),
        ):
            decodes = CounterMetricFamily(name, text, labels=["kind"])
            for kind, value in values.items():
                decodes.add_metric([kind], value)
            yield decodes
        parts = CounterMetricFamily(
            "tailrace_engine_step_seconds", "Time spent in each part of the step.", labels=["part"]
        )
        for part, total_ms in stats.step_ms.items():
            parts.add_metric([part], total_ms / 1e3)
        yield parts
        yield from durations(stats)


def durations(stats: Stats) -> Iterator[Metric]:
    """Of the engine's turns and of the parts of its steps. None before the engine has said anything."""
    turns = HistogramMetricFamily(
        "tailrace_engine_turn_duration_seconds",
        "A turn of the engine's thread: messages taken in, a step, what came of it sent.",
    )
    if stats.turn_counts:
        turns.add_metric([], buckets(DURATION_EDGES_S, stats.turn_counts), stats.turn_ms / 1e3)
    yield turns
    parts = HistogramMetricFamily(
        "tailrace_engine_step_duration_seconds", "Each part of a step, and of a turn around it.", labels=["part"]
    )
    for part, counts in stats.step_counts.items():
        parts.add_metric([part], buckets(DURATION_EDGES_S, counts), stats.step_ms.get(part, 0.0) / 1e3)
    yield parts
