"""The memory that a model gets for its states and its cache: planned, counted, allocated."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.config import CacheConfig
from tailrace.drafting.base import Drafter
from tailrace.engine import cache_size
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.state_snapshots import StateSnapshots
from tailrace.runners.base import ModelRunner, StatefulRunner


class StateMemory(NamedTuple):
    """The memory for states: the entries of each slot's ring, the snapshots, and the bytes of all; 0 for a model
    without a state per sequence."""

    rows: int = 0
    snapshots: int = 0
    num_bytes: int = 0


def plan_states(runner: ModelRunner, slots: int, max_drafts: int, config: CacheConfig) -> StateMemory:
    """Return the memory that the model's states get."""
    if not isinstance(runner, StatefulRunner) or not runner.state_bytes:
        return StateMemory()
    rows = 2 + max_drafts  # a sequence goes back by the rejected drafts, and by one token that was computed for nothing
    rings = slots * rows * runner.state_bytes
    snapshots = cache_size.num_snapshots(config, runner.state_bytes, slots, rings, runner.device)
    return StateMemory(rows, snapshots, rings + snapshots * runner.state_bytes)


def make_cache(blocks: int, slots: int, states: StateMemory, config: CacheConfig) -> BlockCache:
    """Return the cache that assigns blocks and snapshots of states."""
    snapshots = StateSnapshots(config.block_size, slots, states.rows, states.snapshots)
    return BlockCache(blocks, config.block_size, config.prefix_reuse, states.rows, snapshots)


def promised_bytes(runner: ModelRunner, blocks: int, states: StateMemory, drafter: Drafter | None) -> int:
    """Return the machine's memory that the caches and the states will take once they are written."""
    if runner.device.type != "cpu":
        return 0
    return blocks * runner.block_bytes + states.num_bytes + (0 if drafter is None else drafter.cache_bytes)


def allocate_memory(runner: ModelRunner, blocks: int, slots: int, states: StateMemory) -> None:
    """Allocate the runner's memory, after all of it was counted: it is counted as a share of the free memory."""
    if states.rows and isinstance(runner, StatefulRunner):
        runner.allocate_states(slots, states.rows, states.snapshots)
    runner.allocate(blocks)
