"""What Kubernetes' Gateway API inference extension reads from /metrics."""

from __future__ import annotations

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families

from api.harness import LocalClient, endless, front_of
from api.test_adapters import Adaptable
from tailrace.api.gateway_metrics import collect_gateway
from tailrace.wire.messages import ModelInfo, Stats


async def read_gauges(front) -> dict[str, tuple[float, dict[str, str]]]:
    """The protocol's gauges: name → value and labels."""
    text = (await front.http.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:"):
            assert family.type == "gauge"
            [sample] = family.samples
            found[sample.name.removeprefix("vllm:")] = (sample.value, sample.labels)
    return found


async def test_load_is_shown(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.001), tokenizer) as front:
        front.client.hold = True
        asking = asyncio.create_task(front.complete(["x="] * 40, ignore_eos=True, max_tokens=60))
        await front.until(lambda: len(front.client.engine.waiting) == 40)
        front.client.hold = False
        await front.until(lambda: front.client.stats.running == 32)
        front.client.hold = True
        await asyncio.sleep(0)
        gauges = await read_gauges(front)
        stats = front.client.stats
        assert gauges["num_requests_running"] == (stats.running, {})
        assert gauges["num_requests_waiting"] == (stats.waiting, {})
        assert stats.waiting > 0
        assert gauges["kv_cache_usage_perc"] == (stats.blocks_used / stats.blocks_total, {})
        assert 0 < gauges["kv_cache_usage_perc"][0] < 1
        assert gauges["cache_config_info"] == (1, {"block_size": "16", "num_gpu_blocks": "256"})
        assert "lora_requests_info" not in gauges
        front.client.hold = False
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_adapters_are_shown(tokenizer):
    async with front_of(Adaptable(endless), tokenizer) as front:
        for name in ("a", "b"):
            await front.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name})
        began = time.time()
        value, labels = (await read_gauges(front))["lora_requests_info"]
        assert value >= began - 1
        assert labels == {"max_lora": "2", "running_lora_adapters": "a,b", "waiting_lora_adapters": ""}
        front.client.hold = True
        await front.until(lambda: not front.client.engine.has_work)
        asking = asyncio.create_task(front.complete(model="b"))
        await front.until(lambda: len(front.client.engine.waiting) == 1)
        assert front.client.engine.stats().waiting_adapters == ["b"]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        front.client.hold = False


def test_before_the_engine_is_ready_the_load_is_shown_alone():
    names = {family.name for family in collect_gateway(Stats(), None)}
    assert names == {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"}
    info = ModelInfo("m", 5, 5, [], ["a"], 8, 16)
    [family] = [f for f in collect_gateway(Stats(waiting_adapters=["a"]), info) if f.name == "vllm:lora_requests_info"]
    assert family.samples[0].labels == {
        "max_lora": "8",
        "running_lora_adapters": "a",
        "waiting_lora_adapters": "a",
    }
