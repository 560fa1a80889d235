"""Decides how many tokens each sequence computes in the next step: a pure function from the state of the engine to a
Plan.

Rules, in order: running sequences before waiting ones, decodes before prefills, smaller (priority, arrival) first. A
prefill is cut to the rest of the token budget. If blocks run out, the last running sequence is preempted: it releases
its blocks and waits, to be recomputed. No sequence before it in order is preempted, so the first one always advances. A
waiting request is admitted when its slots and the blocks of its whole prompt are free. No request overtakes it, unless
its grammar is still being compiled, or it is a replay and enough of them run.

A conditional sequence and its unconditional one (guidance) are admitted, computed and preempted together. Their last
tokens are computed in one step, because their logits are used together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

from tailrace.config import SchedulerConfig
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.sequence import Sequence
from tailrace.engine.wanted_rows import MAX_REPLAYS, MAX_SCORED

Work = list[tuple[Sequence, int]]  # the sequences of a step, and how many tokens each computes


@dataclass(slots=True)
class Plan:
    """A step's plan.

    - preempt: sequences that release everything first.
    - admit: sequences, with the cached blocks that they and their unconditional ones start from.
    - work: (sequence, tokens), an unconditional sequence right after its conditional one.
    - spare: tokens that the step can still compute.
    """

    preempt: list[Sequence] = field(default_factory=list)
    admit: list[tuple[Sequence, list[list[int]]]] = field(default_factory=list)
    work: Work = field(default_factory=list)
    spare: int = 0


def plan_step(
    running: list[Sequence],
    waiting: list[Sequence],
    cache: BlockCache,
    limits: SchedulerConfig,
    free_slots: int,
    chunk: int,
) -> Plan:
    """Return the plan of the next step. Sequences come in order (Request.order); nothing is changed.

    chunk: the most prompt tokens.
    """
    plan = Plan()
    budget, rows = limits.max_num_batched_tokens, MAX_SCORED
    free, alive = cache.num_free, list(running)
    resting = idle_sequences(running, limits.host_ms / 1e3)
    for sequence in sorted(running, key=lambda s: s.prefilling):  # a stable sort: decodes, then prefills
        if sequence not in alive or sequence in resting:
            continue
        most = min(budget, chunk) if sequence.prefilling else budget
        if most == 0:
            break
        parts = share_budget(sequence, most, rows)
        if sum(parts) == 0:
            continue
        need = count_work_blocks(sequence, parts, cache)
        while need > free and alive[-1] is not sequence:
            free, budget = _preempt_last(plan, alive, cache, free, budget)
        if need > free:
            parts = _fit_parts(sequence, cache, free, min(most, budget), rows)
            if sum(parts) == 0:
                free, budget = _preempt_last(plan, alive, cache, free, budget)
                continue
            need = count_work_blocks(sequence, parts, cache)
        plan.work += make_work(sequence, parts)
        budget -= sum(parts)
        chunk -= sum(parts) if sequence.prefilling else 0
        rows -= rows_made(sequence, parts)
        free -= need
    left = Left(budget, min(budget, chunk), rows, free, free_slots)
    if not plan.preempt:
        _admit_waiting(plan, select_admissible(running, waiting, limits.host_ms / 1e3), cache, left)
    plan.spare = left.budget
    return plan


def idle_sequences(running: list[Sequence], budget_s: float) -> set[Sequence]:
    """Return sequences that wait for a mask, or for others of the same call."""
    late = {sequence for sequence in running if sequence.waits_for_mask}
    return late | resting_sequences([sequence for sequence in running if sequence not in late], budget_s)


def resting_sequences(running: list[Sequence], budget_s: float) -> set[Sequence]:
    """Return sequences that wait for others of the same call (Request.shared_name).

    They wait if all together would take more than `budget_s` of the step, without the model. Those with the shortest
    output go first, so each gets its turn.
    """
    by_name: dict[tuple[bytes, str], list[Sequence]] = {}
    for sequence in running:
        by_name.setdefault(sequence.request.shared_name, []).append(sequence)
    resting: set[Sequence] = set()
    for members in by_name.values():
        if sum(sequence.host_s for sequence in members) <= budget_s:
            continue
        members.sort(key=lambda sequence: sequence.num_output)
        taken = accumulate(sequence.host_s for sequence in members)
        resting.update(s for s, total in zip(members[1:], islice(taken, 1, None), strict=True) if total > budget_s)
    return resting


def select_admissible(running: list[Sequence], waiting: list[Sequence], budget_s: float) -> Iterator[Sequence]:
    """Yield the waiting sequences that may be admitted.

    Sequences that may be expensive are left out while others of their call take all of `budget_s`. Replays are left out
    while MAX_REPLAYS run.
    """
    taken: dict[tuple[bytes, str], float] = {}
    replays = sum(len(sequence.pair) for sequence in running if sequence.walker is not None)
    for sequence in running:
        name = sequence.request.shared_name
        taken[name] = taken.get(name, 0.0) + sequence.host_s
    for sequence in waiting:
        name = sequence.request.shared_name
        before = taken.get(name, 0.0)
        if sequence.waits_for_mask or (before and sequence.host_s and before + sequence.host_s > budget_s):
            continue
        if sequence.walker is not None:
            if replays and replays + len(sequence.pair) > MAX_REPLAYS:
                continue
            replays += len(sequence.pair)
        taken[name] = before + sequence.host_s
        yield sequence


def share_budget(sequence: Sequence, budget: int, rows: int) -> list[int]:
    """Return how many tokens of this budget each sequence of the pair computes.

    rows: the most rows of logits without sampling that may be made.
    """
    return share_from(sequence, [member.num_computed for member in sequence.pair], budget, rows)


def share_from(sequence: Sequence, computed: list[int], budget: int, rows: int) -> list[int]:
    """Return the same as `share`, given how many tokens of each are computed already."""
    remaining = [len(member.tokens) - done for member, done in zip(sequence.pair, computed, strict=True)]
    if sequence.walker is None:
        return split_budget(remaining, budget, most_tokens(sequence, computed[0], rows))
    parts: list[int] = []  # in a replay the rows of a pair wait for each other
    for member, left, done in zip(sequence.pair, remaining, computed, strict=True):
        most = most_tokens(member, done, rows)
        parts.append(min(left, budget) if most is None else min(left, budget, most))
        budget -= parts[-1]
    return parts


def most_tokens(member: Sequence, computed: int, rows: int) -> int | None:
    """Return the most tokens that it may compute, by the rows of logits that it needs; None: all."""
    return None if member.wanted is None else member.wanted.tokens(computed, rows)


def rows_made(sequence: Sequence, parts: list[int]) -> int:
    """Return the number of rows of logits without sampling, if each computes this many tokens more."""
    return sum(
        len(member.wanted.select_places(member.num_computed + part))
        for member, part in zip(sequence.pair, parts, strict=True)
        if member.wanted is not None and part
    )


def split_budget(remaining: list[int], budget: int, most: int | None) -> list[int]:
    """Return all uncomputed tokens, or as many as keep the pair's last tokens in one step.

    most: the most tokens that the first sequence may compute.
    """
    first = remaining[0] if most is None else min(remaining[0], most)
    if len(remaining) == 1:
        return [min(first, budget)]
    if first == remaining[0] and sum(remaining) <= budget:
        return remaining
    one = min(first, remaining[0] - 1, budget)
    return [one, min(remaining[1] - 1, budget - one)]


def count_work_blocks(sequence: Sequence, parts: list[int], cache: BlockCache) -> int:
    """Return the number of free blocks that computing this many tokens takes."""
    return sum(
        cache.count_needed_blocks(member, member.num_computed + part)
        for member, part in zip(sequence.pair, parts, strict=True)
        if part
    )


def make_work(sequence: Sequence, parts: list[int]) -> Work:
    """Return the pair's tokens in the form of a plan."""
    return [(member, part) for member, part in zip(sequence.pair, parts, strict=True) if part]


def _preempt_last(plan: Plan, alive: list[Sequence], cache: BlockCache, free: int, budget: int) -> tuple[int, int]:
    """Preempt the last sequence. Return the free blocks and the budget after it."""
    gone = [member for victim in plan.preempt for member in victim.pair]
    victim = alive.pop()
    plan.preempt.append(victim)
    free += cache.count_freed_blocks([*gone, *victim.pair]) - cache.count_freed_blocks(gone)
    for entry in [entry for entry in plan.work if entry[0] in victim.pair]:
        plan.work.remove(entry)
        member, tokens = entry
        free += cache.count_needed_blocks(member, member.num_computed + tokens)
        budget += tokens
    return free, budget


def _fit_parts(sequence: Sequence, cache: BlockCache, free: int, budget: int, rows: int) -> list[int]:
    """Return the largest part of the budget that fits `free` more blocks; zeros if not even one token does."""
    wanted = range(1, budget + 1)
    most = bisect_right(
        wanted, free, key=lambda tokens: count_work_blocks(sequence, share_budget(sequence, tokens, rows), cache)
    )
    return share_budget(sequence, most, rows)


@dataclass(slots=True)
class Left:
    """The rest of a step: tokens, prompt tokens among them, rows of logits for prompts, blocks, slots."""

    budget: int
    chunk: int
    rows: int
    free: int
    slots: int


def _admit_waiting(plan: Plan, waiting: Iterable[Sequence], cache: BlockCache, left: Left) -> None:
    """Admit waiting requests in order while the rest suffices."""
    written: set[int] | None = None
    for sequence in waiting:
        if sequence.request.compilations:
            continue
        members = sequence.pair
        slots = (1 + len(sequence.forks)) * len(members)
        if left.chunk == 0 or slots > left.slots or (sequence.wants_rows and left.rows == 0):
            return
        cached = [cache.match_prefix(member) for member in members]
        revived = sum(
            cache.references[block] == 0 for blocks in cached for block in blocks
        )  # free now, but not once attached
        if written is None:
            written = {block for member, _ in plan.work if (block := cache.own_block(member)) is not None}
        copied = {block for blocks in cached for block in blocks if block in written}  # copied by a writer
        whole = sum(cache.blocks_for(len(member.tokens) + 1) for member in members)
        need = whole - sum(map(len, cached)) + revived + len(copied)
        if need > left.free:
            return
        written -= copied
        computed = [len(found) * cache.block_size for found in cached]
        parts = share_from(sequence, computed, left.chunk, left.rows)
        left.rows -= rows_made(sequence, [done + part for done, part in zip(computed, parts, strict=True)])
        plan.admit.append((sequence, cached))
        plan.work += make_work(sequence, parts)
        left.budget -= sum(parts)
        left.chunk -= sum(parts)
        left.free -= need  # its whole prompt is reserved, so that the next admitted request can't starve it
        left.slots -= slots
