"""Checks whether several models fit into memory together, before any is loaded, and divides the rest among them."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from tailrace.base.python_command import make_script_command
from tailrace.config import WITH_WEIGHTS, EngineConfig
from tailrace.engine import cache_size
from tailrace.errors import ConfigError
from tailrace.models import describe
from tailrace.models.footprint import SCALE_BYTES, adapters_bytes, block_bytes, head_bytes, weights_bytes

GIB = 1 << 30
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PROCESS_BYTES = int(0.4 * GIB)  # of an engine without its model: the interpreter, torch, compiled grammars
GROWTH_SHARE = 0.5  # of the memory left for requests, as in engine/memory.py
LEAST_GROWTH_GIB = 0.25
GPUS = (
    "import json, torch; print(json.dumps([torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]))"
)


class MemoryNeed(NamedTuple):
    """The bytes that one model takes. cache None: a share of the rest."""

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
    """Return the settings of models that fit. KV caches without a configured size share the rest, and so do requests.

    Args:
        models: (name, settings, folder or None for a model without weights).
        room: returns the bytes that a device has left.

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
    """Return the settings, with these sizes if the operator has set none."""
    cache = engine.cache
    if cache_gib is not None:
        cache = msgspec.structs.replace(cache, memory_gib=cache_gib)
    if not cache.memory_growth_gib:
        cache = msgspec.structs.replace(cache, memory_growth_gib=growth_gib)
    return msgspec.structs.replace(engine, cache=cache)


def memory_need(name: str, engine: EngineConfig, folder: Path | None) -> MemoryNeed:
    """Return the bytes that a model takes, including its adapters and its drafter.

    Raises:
        ModelLoadError: its files can't be read.
    """
    device = device_of(engine.model.device)
    if folder is None:
        return MemoryNeed(name, device, 0, 0)
    itemsize, config, on_cpu = ITEM_BYTES[engine.model.dtype], engine.cache, device == "cpu"
    weights = weights_bytes(folder, itemsize, on_cpu) + adapters_bytes(engine.model.adapters.values(), itemsize, on_cpu)
    drafter = engine.speculation
    if drafter.drafter == "mtp":
        weights += head_bytes(Path(drafter.model or folder), itemsize) + int(drafter.cache_gib * GIB)
    elif drafter.model is not None and drafter.drafter in WITH_WEIGHTS:
        weights += weights_bytes(Path(drafter.model), itemsize, on_cpu) + int(drafter.cache_gib * GIB)
    if not config.num_blocks and not config.memory_gib:
        return MemoryNeed(name, device, weights, None)
    kept = (itemsize, 0) if engine.model.kv_cache_dtype == "auto" else (1, SCALE_BYTES)
    each = block_bytes(folder, config.block_size, *kept)
    if config.num_blocks:
        return MemoryNeed(name, device, weights, config.num_blocks * each)
    longest = describe(folder, name, engine.scheduler.max_model_len, engine.model.trust_remote_code).max_model_len
    most = engine.scheduler.max_num_seqs * -(-longest // config.block_size) * each
    return MemoryNeed(name, device, weights, int(min(config.memory_gib * GIB, most or config.memory_gib * GIB)))


def device_of(name: str) -> str:
    """Return a device's full name: cpu, or cuda:N."""
    if name == "auto":
        return "cuda:0" if gpus() else "cpu"
    return "cuda:0" if name == "cuda" else name


def free_bytes(device: str) -> float:
    """Return the free bytes of a device.

    Raises:
        ConfigError: there is no such GPU.
    """
    if device == "cpu":
        return cache_size.measure_available_memory()
    _, _, number = device.partition(":")
    if not device.startswith("cuda:") or not number.isdigit() or int(number) >= len(gpus()):
        raise ConfigError(f"device {device!r} is not available")
    return gpus()[int(number)]


@cache
def gpus() -> list[int]:
    """Return the free bytes of each GPU. Another process asks for them, since such a process then keeps some GPU
    memory."""
    if not Path("/dev/nvidiactl").exists():
        return []
    found = subprocess.run(make_script_command(GPUS), capture_output=True, text=True, check=False)
    return json.loads(found.stdout) if found.returncode == 0 else []
