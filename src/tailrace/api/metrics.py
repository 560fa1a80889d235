"""What /metrics shows, in a Prometheus registry of its own. Latencies are measured in the front end, where clients feel
them; load and cache come from the engine's counters (engine_metrics.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tailrace.api.engine_metrics import EngineCollector
from tailrace.api.histogram import FastHistogram
from tailrace.wire.messages import DURATION_EDGES_S, ModelInfo, Stats

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
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
        info: Callable[[], ModelInfo | None] = lambda: None,
        asleep: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = EngineCollector(stats, ready, stalls, info, asleep)
        self._registry = CollectorRegistry()
        self._registry.register(WastedTokens(wasted))
        self.time_to_first_token = self._make_histogram(
            "time_to_first_token", "From the request's arrival to its first token, per prompt.", FIRST_TOKEN_S
        )
        self.queue_time = self._make_histogram(
            "request_queue_time", "From a prompt's arrival at the engine until it got a slot.", FIRST_TOKEN_S
        )
        self.e2e_latency = self._make_histogram(
            "e2e_request_latency", "From the request's arrival to its last token.", END_TO_END_S
        )
        self.inter_token_latency = FastHistogram(
            "tailrace_inter_token_latency_seconds",
            "Between two tokens of a sequence; tokens of one event share the gap.",
            BETWEEN_TOKENS_S,
        )
        self._registry.register(self.inter_token_latency)
        self.finished = self._make_counter("finished", "Sequences that ended, by finish reason.", "finish_reason")
        self.failed = self._make_counter("failed", "Requests that ended with an error, by its code.", "code")
        self.aborted = self._make_counter("aborted", "Aborts sent to the engine, by cause.", "cause")

    def _make_histogram(self, name: str, text: str, edges_s: Sequence[float]) -> Histogram:
        return Histogram(f"tailrace_{name}_seconds", text, buckets=edges_s, registry=self._registry)

    def _make_counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"tailrace_request_{name}_total", text, [label], registry=self._registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
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
        self.event_loop_lag = FastHistogram(
            "tailrace_event_loop_lag_seconds",
            "How late a timer of the front end's event loop fires: so long one request keeps others waiting.",
            DURATION_EDGES_S,
        )
        self._registry.register(self.event_loop_lag)
        self.preparation_wait = FastHistogram(
            "tailrace_request_preparation_wait_seconds",
            "From the end of a request's body until the front end prepares it, while others of its user are prepared.",
            FIRST_TOKEN_S,
        )
        self._registry.register(self.preparation_wait)
        self._registry.register(
            LabelledCollector(lambda: {name: metrics.collect() for name, metrics in models.items()})
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge of this front end that is read at each scrape."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def register(self, collector: Collector) -> None:
        """Add families of this front end."""
        self._registry.register(collector)

    def own(self) -> bytes:
        """What this front end has counted, as text."""
        return generate_latest(self._registry)

    def render_metrics(self, counted: Sequence[bytes] = ()) -> bytes:
        """All metrics of the engines and the front ends, as text. counted: the text of each front end's `own`; none: of
        this one alone."""
        whole = CollectorRegistry()
        whole.register(
            LabelledCollector(lambda: {name: metrics.engine.collect() for name, metrics in self._models.items()})
        )
        whole.register(SummedCollector(counted or [self.own()]))
        return generate_latest(whole)


class LabelledCollector(Collector):
    """The families of several models, each once; their samples differ in the label `model_name`.

    Args:
        families: model name → its families, read at each scrape.
    """

    def __init__(self, families: Callable[[], Mapping[str, Iterator[Metric]]]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing: duplicates are not looked for before the first scrape."""
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


class SummedCollector(Collector):
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
                    # _created is a time: the earliest one counts
                    add = min if sample.name.endswith("_created") else float.__add__
                    totals[name] = add(totals[name], sample.value) if name in totals else sample.value
        yield GaugeMetricFamily("tailrace_front_ends", "Front ends that have been counted.", value=len(self._counted))
        for family in families.values():
            family.samples = [s._replace(value=totals[s.name, frozenset(s.labels.items())]) for s in family.samples]
            yield family


class WastedTokens(Collector):
    """Tokens that were sampled and not used."""

    def __init__(self, wasted: Callable[[], int]) -> None:
        self._wasted = wasted

    def collect(self) -> Iterator[Metric]:
        """The count."""
        text = "Tokens sampled after a stop that only the front end could find."
        yield CounterMetricFamily("tailrace_wasted_tokens", text, value=self._wasted())
