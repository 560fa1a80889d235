"""The engine's gauges under the names that Kubernetes' Gateway API inference extension reads without configuration: the
model server protocol of its proposal 003, in vLLM's spelling."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tailrace.wire.messages import ModelInfo, Stats


def collect_gateway(stats: Stats, info: ModelInfo | None) -> Iterator[Metric]:
    """Yield the protocol's families. info: None before the engine is ready; then those that need it are missing."""
    share = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    yield GaugeMetricFamily("vllm:num_requests_waiting", "As tailrace_num_requests_waiting.", value=stats.waiting)
    yield GaugeMetricFamily("vllm:num_requests_running", "As tailrace_num_requests_running.", value=stats.running)
    yield GaugeMetricFamily("vllm:kv_cache_usage_perc", "As tailrace_kv_cache_usage_ratio: 0 to 1.", value=share)
    if info is None:
        return
    cache = {"block_size": str(info.block_size), "num_gpu_blocks": str(stats.blocks_total)}
    yield make_info("vllm:cache_config_info", "The KV cache's blocks, in its labels.", cache, 1.0)
    if most := max(info.max_adapters, len(info.adapters)):
        adapters = {
            "max_lora": str(most),
            "running_lora_adapters": ",".join(info.adapters),
            "waiting_lora_adapters": ",".join(stats.waiting_adapters),
        }
        text = "LoRA adapters: loaded ones, and those that waiting requests use. The value is the time of the scrape."
        yield make_info("vllm:lora_requests_info", text, adapters, time.time())


def make_info(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    """Return a gauge with one sample whose labels are the data."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
