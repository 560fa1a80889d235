"""The number of blocks in the KV cache if the operator sets none, and whether weights fit.

torch is imported only to ask a GPU.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.config import CacheConfig, ModelConfig, SpeculationConfig
from tailrace.engine import cgroup
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.footprint import adapters_bytes, head_bytes, weights_bytes

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

SHARE = 0.3  # share of the memory that is available now
SNAPSHOTS = 1 / 8  # share of the cache's memory
DEVICE_SHARE = 0.7  # share of a GPU's memory; drafters, sampling, attention and graphs take the rest later


def num_blocks(
    config: CacheConfig, block_bytes: int, wanted: int, device: torch.device | None = None, states: int = 0
) -> int:
    """Return the configured number of blocks, or as many as fit, at most `wanted`.

    config.memory_gib limits their memory; 0: a share of the free memory.

    Args:
        block_bytes: of one block over all layers. Zero if the runner needs no memory.
        wanted: blocks with which every slot could reach the full context.
        device: the device that has the memory. None: the machine.
        states: bytes for the states of all sequences.

    Raises:
        ConfigError: not even one block fits in addition to the states.
    """
    if not states and (config.num_blocks or block_bytes == 0):
        return config.num_blocks or wanted
    budget = (config.memory_gib * 2**30 or cache_budget(device, whole=bool(config.num_blocks))) - states
    if budget < 0:
        named = "cache.state_snapshots and " if config.state_snapshots else ""
        raise ConfigError(
            f"{named}scheduler.max_num_seqs: the model keeps a state per sequence; together they take "
            f"{states / 2**30:.2f} GiB, of {(budget + states) / 2**30:.2f} GiB for the cache (cache.memory_gib)"
        )
    if config.num_blocks:
        return config.num_blocks
    if block_bytes == 0:
        return wanted
    fitting = int(budget // block_bytes)
    if fitting < 1:
        raise ConfigError(f"cache.memory_gib: {budget / 2**30:.2f} GiB do not hold a block of {block_bytes} bytes")
    return min(wanted, fitting)


def num_snapshots(
    config: CacheConfig, state_bytes: int, slots: int, rings: int = 0, device: torch.device | None = None
) -> int:
    """Return the configured number of snapshots of states, or two per slot, as long as they fit into a part of the
    cache's memory. Log the number.

    Args:
        state_bytes: of one state over all layers; 0: the model has none.
        rings: bytes for the states of running sequences, which come first.
    """
    if not config.prefix_reuse or not state_bytes:
        return 0
    budget = max(0.0, (config.memory_gib * 2**30 or cache_budget(device)) - rings)
    count = config.state_snapshots or min(2 * slots, int(SNAPSHOTS * budget // state_bytes))
    mib = state_bytes / 2**20
    if count:
        log.info("%d copies of states, of %.1f MiB each, for cached prefixes (--state-snapshots)", count, mib)
    else:
        log.warning("no prefix is reused: the cache has no room for a copy of a state, of %.1f MiB", mib)
    return count


def check_memory(folder: Path, config: ModelConfig, speculation: SpeculationConfig | None = None) -> None:
    """Log how much memory the weights will take, with those of LoRA adapters and of an MTP head that drafts, before
    they are loaded.

    Raises:
        ModelLoadError: they don't fit.
    """
    itemsize = 4 if config.dtype == "float32" else 2
    need = weights_bytes(folder, itemsize, packed=True) + adapters_bytes(
        config.adapters.values(), itemsize, packed=True
    )
    if speculation is not None and speculation.drafter == "mtp":
        need += head_bytes(Path(speculation.model or folder), itemsize)
    left = measure_available_memory()
    log.info("weights will take %.2f GiB of %.2f GiB that are available", need / 2**30, left / 2**30)
    if need > left:
        raise ModelLoadError(
            f"{folder.name} needs {need / 2**30:.2f} GiB of memory for its weights, and {left / 2**30:.2f} GiB are "
            "available: end other programs, or take a smaller or more strongly quantized model"
        )


def cache_budget(device: torch.device | None, whole: bool = False) -> float:
    """Return the bytes that the cache may take. whole: all that are available."""
    if device is not None and device.type == "cuda":
        import torch

        return (1.0 if whole else DEVICE_SHARE) * torch.cuda.mem_get_info(device)[0]
    return (1.0 if whole else SHARE) * measure_available_memory()


def measure_available_memory() -> int:
    """Return the bytes of memory available without swapping, within the limits of a container."""
    left = cgroup.measure_headroom()
    return read_machine_memory() if left is None else min(left, read_machine_memory())


def read_machine_memory() -> int:
    """Return the bytes available on the whole machine."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
