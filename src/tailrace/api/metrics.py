"""Prometheus metrics, under the field's names: what the front end measures, and the engine's own counters as they last came."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace.wire.messages import Stats

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """One set per app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = {"registry": self.registry, "namespace": "tailrace"}
        self.first_token = Histogram("time_to_first_token_seconds", "Request to first token", buckets=SECONDS, **make)
        self.between = Histogram("inter_token_latency_seconds", "Between tokens of a choice", buckets=BETWEEN, **make)
        self.whole = Histogram("e2e_request_latency_seconds", "Request to last token", buckets=SECONDS, **make)
        self.finished = Counter("request_success", "Choices ended", ["finished_reason"], **make)
        self.failed = Counter("request_errors", "Requests refused or failed", ["code"], **make)
        self.aborted = Counter("request_aborts", "Requests ended from this side", ["cause"], **make)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens of finished requests", **make)
        self.generated_tokens = Counter("generation_tokens", "Tokens delivered", **make)
        self.engine = EngineStats()
        self.registry.register(self.engine)

    def render(self, stats: Stats, alive: bool) -> bytes:
        """The text that Prometheus scrapes."""
        self.engine.stats, self.engine.alive = stats, alive
        return generate_latest(self.registry)


class EngineStats(Collector):
    """The engine's last Stats message as metrics."""

    stats = Stats()
    alive = False

    def collect(self) -> Iterator[Metric]:
        s = self.stats
        gauges = {
            "engine_up": ("1 while the engine can serve", float(self.alive)),
            "num_requests_running": ("Sequences being computed", s.running),
            "num_requests_waiting": ("Requests in the waiting line", s.waiting),
            "kv_cache_blocks_used": ("Blocks held by running sequences", s.blocks_used),
            "kv_cache_usage_perc": ("Share of blocks in use, 0 … 1", s.blocks_used / s.blocks_total if s.blocks_total else 0),
        }
        counters = {
            "engine_steps": ("Steps computed", s.steps),
            "engine_prompt_tokens": ("Prompt tokens accepted", s.prompt_tokens),
            "prefix_cache_hit_tokens": ("Prompt tokens found in the prefix cache", s.cached_tokens),
            "engine_generated_tokens": ("Tokens drawn", s.generated_tokens),
            "num_preemptions": ("Sequences preempted", s.preemptions),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"tailrace_{name}", text, value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"tailrace_{name}", text, value)
        parts = CounterMetricFamily("tailrace_step_time_ms", "Time per part of the step", labels=["part"])
        for part, total in s.step_ms.items():
            parts.add_metric([part], total)
        yield parts
