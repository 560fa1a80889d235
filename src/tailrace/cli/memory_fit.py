"""Whether several models fit into memory side by side, checked before any is loaded, and how the rest is shared among
them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from tailrace.config import WITH_WEIGHTS, EngineConfig
from tailrace.engine import cache_size
from tailrace.errors import ConfigError
from tailrace.models import describe
from tailrace.models.footprint import SCALE_BYTES, adapters_bytes, block_bytes, weights_bytes

GIB = 1 << 30
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PROCESS_BYTES = int(0.4 * GIB)  # of an engine without its model: the interpreter, torch, compiled grammars
GROWTH_SHARE = 0.5  # of what is left for requests, as engine/memory.py has it for one
LEAST_GROWTH_GIB = 0.25
GPUS = (
    "import json, torch; print(json.dumps([torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]))"
)


class MemoryNeed(NamedTuple):
    """Bytes that one model takes. cache: None: a share of what is left."""

    name: str
    device: str
    weights: int
    cache: int | None

    @property
    def least(self) -> int:
        """Bytes that the model takes in any case."""
        return self.weights + (self.cache or 0) + PROCESS_BYTES

    def __str__(self) -> str:
        held = "a share of what is left" if self.cache is None else f"{self.cache / GIB:.2f} GiB"
        return (
            f"{self.name} {self.least / GIB:.2f} GiB (weights {self.weights / GIB:.2f}, KV cache {held}, process "
            f"{PROCESS_BYTES / GIB:.2f})"
        )


def fit_into_memory(
    models: Sequence[tuple[str, EngineConfig, Path | None]], room: Callable[[str], float] | None = None
) -> list[EngineConfig]:
    """The settings of models that fit. KV caches whose size is not set share what is left, and so do requests.

    Args:
        models: (name, settings, folder; None: it has no weights). room: bytes that a device has left.

    Raises:
        ConfigError: they don't fit; the message lists what each needs.
    """
    room = free_bytes if room is None else room
    needs = [memory_need(*model) for model in models]
    groups: defaultdict[str, list[MemoryNeed]] = defaultdict(list)
    for need in needs:
        groups[need.device].append(need)
    cache_gib: dict[str, float] = {}
    rest_gib = room("cpu") / GIB if "cpu" not in groups else 0.0  # GiB of the host's memory for requests
    for device, group in groups.items():
        there, wanted = room(device), sum(need.least for need in group)
        if wanted > there:
            raise ConfigError(
                f"the models need {wanted / GIB:.2f} GiB of {device}'s memory, of which "
                f"{there / GIB:.2f} GiB are left: "
                + ", ".join(map(str, group))
                + "; leave one out, or give them less (--model NAME=MODEL,memory-gib=…)"
            )
        unset = [need for need in group if need.cache is None]
        share = cache_size.SHARE if device == "cpu" else cache_size.DEVICE_SHARE
        given = share * (there - wanted) / max(1, len(unset)) / GIB
        cache_gib |= {need.name: given for need in unset}
        if device == "cpu":
            rest_gib = (there - wanted) / GIB - given * len(unset)
    growth_gib = max(LEAST_GROWTH_GIB, GROWTH_SHARE * rest_gib / len(models))
    return [
        with_memory(engine, cache_gib.get(need.name), growth_gib)
        for need, (_, engine, _) in zip(needs, models, strict=True)
    ]


def with_memory(engine: EngineConfig, cache_gib: float | None, growth_gib: float) -> EngineConfig:
    """The settings with these sizes where the operator has set none."""
    cache = engine.cache
    if cache_gib is not None:
        cache = msgspec.structs.replace(cache, memory_gib=cache_gib)
    if not cache.memory_growth_gib:
        cache = msgspec.structs.replace(cache, memory_growth_gib=growth_gib)
    return msgspec.structs.replace(engine, cache=cache)


def memory_need(name: str, engine: EngineConfig, folder: Path | None) -> MemoryNeed:
    """Bytes that a model takes, its adapters and its drafter included.

    Raises:
        ModelLoadError: its files can't be read.
    """
    device = device_of(engine.model.device)
    if folder is None:
        return MemoryNeed(name, device, 0, 0)
    itemsize, config, on_cpu = ITEM_BYTES[engine.model.dtype], engine.cache, device == "cpu"
    weights = weights_bytes(folder, itemsize, on_cpu) + adapters_bytes(engine.model.adapters.values(), itemsize, on_cpu)
    drafter = engine.speculation
    if drafter.model is not None and drafter.drafter in WITH_WEIGHTS:
        weights += weights_bytes(Path(drafter.model), itemsize, on_cpu) + int(drafter.cache_gib * GIB)
    if not config.num_blocks and not config.memory_gib:
        return MemoryNeed(name, device, weights, None)
    kept = (itemsize, 0) if engine.model.kv_cache_dtype == "auto" else (1, SCALE_BYTES)
    each = block_bytes(folder, config.block_size, *kept)
    if config.num_blocks:
        return MemoryNeed(name, device, weights, config.num_blocks * each)
    longest = describe(folder, name, engine.scheduler.max_model_len).max_model_len
    most = engine.scheduler.max_num_seqs * -(-longest // config.block_size) * each
    return MemoryNeed(name, device, weights, int(min(config.memory_gib * GIB, most or config.memory_gib * GIB)))


def device_of(name: str) -> str:
    """cpu, or cuda:N."""
    if name == "auto":
        return "cuda:0" if gpus() else "cpu"
    return "cuda:0" if name == "cuda" else name


def free_bytes(device: str) -> float:
    """Free bytes of a device.

    Raises:
        ConfigError: there is no such GPU.
    """
    if device == "cpu":
        return cache_size.available()
    _, _, number = device.partition(":")
    if not device.startswith("cuda:") or not number.isdigit() or int(number) >= len(gpus()):
        raise ConfigError(f"device {device!r} is not available")
    return gpus()[int(number)]


@cache
def gpus() -> list[int]:
    """Free bytes of each GPU. Asked in another process: a process that asks holds GPU memory from then on."""
    if not Path("/dev/nvidiactl").exists():
        return []
    found = subprocess.run([sys.executable, "-c", GPUS], capture_output=True, text=True, check=False)
    return json.loads(found.stdout) if found.returncode == 0 else []
