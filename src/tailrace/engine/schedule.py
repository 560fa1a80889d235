"""Who computes how many tokens in the next step: a pure function from the state of the world to a Plan.

Rules, in order: running sequences before waiting ones, decodes before prefills, smaller (priority, arrival) first. A prefill is cut
to what is left of the token budget. Where blocks run out, the last running sequence is preempted (it lets go of its
blocks and waits, to be recomputed), never one before it in order, so the first always moves. A waiting request is
admitted when its slots and the blocks of its whole prompt are there; nobody overtakes it.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from tailrace.config import SchedulerConfig
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.request import Sequence


@dataclass(slots=True)
class Plan:
    """preempt: these let go of everything first. admit: with the cached blocks they start from. work: (sequence, tokens)."""

    preempt: list[Sequence] = field(default_factory=list)
    admit: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    work: list[tuple[Sequence, int]] = field(default_factory=list)


def schedule(
    running: List[Sequence], waiting: List[Sequence], cache: BlockCache, limits: SchedulerConfig, free_slots: int
) -> Plan:
    """The next step. `running` and `waiting` in order (see Request.order); neither they nor the cache are changed."""
    plan = Plan()
    budget = limits.max_num_batched_tokens
    free = cache.num_free
    alive = list(running)
    for sequence in sorted(running, key=lambda s: s.remaining > 1):  # stable: decodes, then prefills
        if sequence not in alive:
            continue
        tokens = min(sequence.remaining, budget)
        if tokens == 0:
            break
        need = cache.demand(sequence, sequence.computed + tokens)
        while need > free and alive[-1] is not sequence:
            free, budget = _preempt(plan, alive, cache, free, budget)
        if need > free:
            tokens = _fitting(sequence, cache, free)
            if tokens <= 0:
                free, budget = _preempt(plan, alive, cache, free, budget)
                continue
            need = cache.demand(sequence, sequence.computed + tokens)
        plan.work.append((sequence, tokens))
        budget -= tokens
        free -= need
    if not plan.preempt:
        _admit(plan, waiting, cache, budget, free, free_slots)
    return plan


def _preempt(plan: Plan, alive: list[Sequence], cache: BlockCache, free: int, budget: int) -> tuple[int, int]:
    """Preempt the last one; returns the free blocks and the budget after it."""
    victim = alive.pop()
    plan.preempt.append(victim)
    free += cache.yields(victim)
    for place, (sequence, tokens) in enumerate(plan.work):
        if sequence is victim:
            del plan.work[place]
            free += cache.demand(victim, victim.computed + tokens)
            budget += tokens
            break
    return free, budget


def _fitting(sequence: Sequence, cache: BlockCache, free: int) -> int:
    """How many of its remaining tokens fit `free` more blocks; 0 where even one does not."""
    copied = cache.demand(sequence, 0)
    room = (len(sequence.blocks) + free - copied) * cache.block_size - sequence.computed
    return min(sequence.remaining, room) if copied <= free else 0


def _admit(plan: Plan, waiting: List[Sequence], cache: BlockCache, budget: int, free: int, free_slots: int) -> None:
    """Take waiting requests in order while budget, slots and blocks last."""
    for sequence in waiting:
        slots = 1 + len(sequence.siblings)
        if budget == 0 or slots > free_slots:
            return
        cached = cache.match(sequence)
        revived = sum(cache.references[block] == 0 for block in cached)  # free now, not free once attached
        if cache.blocks_for(len(sequence.tokens) + 1) - len(cached) + revived > free:
            return
        tokens = min(len(sequence.tokens) - len(cached) * cache.block_size, budget)
        plan.admit.append((sequence, cached))
        plan.work.append((sequence, tokens))
        budget -= tokens
        # its whole prompt is set aside, so that the next one admitted can't starve it
        free -= cache.blocks_for(len(sequence.tokens) + 1) - len(cached) + revived
        free_slots -= slots
