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

MAX_SCORED = 128  # rows of logits in one step for prompt logprobs: 128 MiB at a vocabulary of 256 thousand in float32


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
    budget, rows = limits.max_num_batched_tokens, MAX_SCORED
    free = cache.num_free
    alive = list(running)
    for sequence in sorted(running, key=lambda s: s.remaining > 1):  # stable: decodes, then prefills
        if sequence not in alive:
            continue
        tokens = min(sequence.remaining, budget)
        if tokens == 0:
            break
        if sequence.scoring and (tokens := min(tokens, rows)) == 0:
            continue
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
        rows -= tokens if sequence.scoring else 0
        free -= need
    if not plan.preempt:
        _admit(plan, waiting, cache, Left(budget, rows, free, free_slots))
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


@dataclass(slots=True)
class Left:
    """What a step still has to give: tokens, rows of logits for prompts, blocks, slots."""

    budget: int
    rows: int
    free: int
    slots: int


def _admit(plan: Plan, waiting: List[Sequence], cache: BlockCache, left: Left) -> None:
    """Take waiting requests in order while there is something left."""
    for sequence in waiting:
        slots = 1 + len(sequence.siblings)
        if left.budget == 0 or slots > left.slots or (sequence.scoring and left.rows == 0):
            return
        cached = [] if sequence.scoring else cache.match(sequence)  # of cached positions there are no logits
        revived = sum(cache.references[block] == 0 for block in cached)  # free now, not free once attached
        need = cache.blocks_for(len(sequence.tokens) + 1) - len(cached) + revived
        if need > left.free:
            return
        tokens = min(len(sequence.tokens) - len(cached) * cache.block_size, left.budget)
        if sequence.scoring:
            tokens = min(tokens, left.rows)
            left.rows -= tokens
        plan.admit.append((sequence, cached))
        plan.work.append((sequence, tokens))
        left.budget -= tokens
        left.free -= need  # its whole prompt is set aside, so that the next one admitted can't starve it
        left.slots -= slots
