"""Decides how many tokens each sequence computes in the next step: a pure function from the state of the engine to a
Plan.

Rules, in order: decodes before prefills, and of each user running sequences before waiting ones, smaller (priority,
arrival) first. While several users compete, decodes leave a part of the budget to prompts. A prefill is cut to the rest
of the token budget. If several users want prompt tokens, the one with the smallest share is next (shares.py), and the
others get what the step has left. With one user this is the order of arrival.

If blocks run out, a sequence is preempted: it releases its blocks and waits, to be recomputed. It is the last one of
the user with the largest share (sort_by_share). No sequence before the one that needs the blocks in that order is
preempted, so the first one always advances. admission.py admits waiting requests.

A conditional sequence and its unconditional one (guidance) are admitted, computed and preempted together. Their last
tokens are computed in one step, because their logits are used together.
"""

from __future__ import annotations

from collections import Counter

from tailrace.config import SchedulerConfig
from tailrace.engine.admission import admit_waiting, list_yielding
from tailrace.engine.host_budget import idle_sequences, select_admissible
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.parts import count_work_blocks, fit_parts, make_work, rows_made, share_budget
from tailrace.engine.plan import Left, Plan, charge_turn, count_held_slots, preempt
from tailrace.engine.sequence import Phase, Sequence
from tailrace.engine.shares import Share, divide_slots, sort_by_share, take_turns
from tailrace.engine.wanted_rows import MAX_SCORED

PROMPT_PART = 4  # A step keeps one part in so many for prompts while several users compete.


def plan_step(
    running: list[Sequence],
    waiting: list[Sequence],
    cache: BlockCache,
    limits: SchedulerConfig,
    room: tuple[int, int],
    shares: dict[str, Share],
) -> Plan:
    """Return the plan of the next step. Sequences come in order (Request.order); nothing is changed.

    Args:
        room: the number of free slots, and the most prompt tokens.
        shares: of all users with requests.
    """
    left, host_s = _begin_plan(running, cache, limits, room, shares), limits.host_ms / 1e3
    resting = idle_sequences(running, host_s)
    awake = [sequence for sequence in running if sequence not in resting]
    decodes = [sequence for sequence in awake if not sequence.prefilling]
    prefills = [sequence for sequence in awake if sequence.prefilling]
    kept = left.budget // PROMPT_PART if len(shares) > 1 and (prefills or waiting) else 0
    decoding = iter(decodes if len(decodes) <= left.budget - kept else sort_by_share(decodes, shares))
    while left.budget > kept and (sequence := next(decoding, None)) is not None:
        _plan_running(left, sequence)
    turns = take_turns(prefills, waiting, left.shares, left.closed)
    for sequence in select_admissible(running, turns, host_s, len(shares) > 1):
        if left.prompt_tokens == 0:
            break
        if sequence.phase is Phase.RUNNING:
            _plan_running(left, sequence)
        else:
            left = admit_waiting(left, sequence)
    for sequence in decoding:
        _plan_running(left, sequence)
    left.plan.spare = left.budget
    return left.plan


def _begin_plan(
    running: list[Sequence],
    cache: BlockCache,
    limits: SchedulerConfig,
    room: tuple[int, int],
    shares: dict[str, Share],
) -> Left:
    alive = sort_by_share(running, shares)
    several = len(shares) > 1
    held = count_held_slots(running) if several else Counter[str]()  # a user alone may have all slots
    return Left(
        plan=Plan(),
        cache=cache,
        alive=alive,
        held=held,
        parts=divide_slots(room[0] + held.total(), shares),
        yielding=list_yielding(alive) if several else [],
        prefills=[sequence for sequence in running if sequence.prefilling],
        shares=dict(shares),
        service={user: share.service for user, share in shares.items()},
        budget=limits.max_num_batched_tokens,
        chunk=room[1],
        rows=MAX_SCORED,
        free=cache.num_free,
        slots=room[0],
        turn=max((share.turn for share in shares.values()), default=0),
    )


def _plan_running(left: Left, sequence: Sequence) -> None:
    """Plan a running sequence. Preempt others if it needs their blocks; then no sequence is admitted in this step."""
    if sequence not in left.alive:
        return
    cache, most = left.cache, left.prompt_tokens if sequence.prefilling else left.budget
    parts = share_budget(sequence, cache, most, left.rows)
    if sum(parts) == 0:
        return
    need = count_work_blocks(sequence, parts, cache) + _count_shared_writes(left, sequence)
    while need > left.free and left.alive[-1] is not sequence:
        _preempt_last(left)
    if need > left.free:
        parts = fit_parts(sequence, cache, left.free, min(most, left.budget), left.rows)
        if sum(parts) == 0:
            _preempt_last(left)
            return
        need = count_work_blocks(sequence, parts, cache)
    left.plan.work += make_work(sequence, parts)
    if left.written is not None:
        left.written.update(cache.own_block(member) for member in sequence.pair)
    left.budget -= sum(parts)
    if sequence.prefilling:
        left.chunk -= sum(parts)
        charge_turn(left, sequence, sum(parts))
    left.rows -= rows_made(sequence, parts)
    left.free -= need


def _preempt_last(left: Left) -> None:
    preempt(left, left.alive[-1])
    left.full = True


def _count_shared_writes(left: Left, sequence: Sequence) -> int:
    """Return how many of its next blocks must be copied because a sequence admitted in this step starts from them."""
    return sum(left.cache.own_block(member) in left.attached for member in sequence.pair)
