"""Admits waiting requests, and preempts sequences of other users for a user who has less than an equal part of slots.

A request is admitted if its slots and the blocks of its whole prompt are free. No request overtakes it, unless its
grammar is still being compiled, it is a replay and enough of them run, or its prompt is long and enough long prompts of
other users are being computed. A user without a running sequence also overtakes a request that does not fit. So does
any user within an equal part of the slots if the request's user would have more than that.

A user within this part does not wait until others' generations end: sequences of users with larger shares are
preempted, the largest share's last one first. Their users keep an equal part of the slots, except for a user without a
running sequence. The user of a preempted sequence must have sampled tokens for it, in all of its sequences together
(Share.service): one for each RECOMPUTED tokens that must be computed again, at least LEAST_SERVICE, and at most
MOST_SERVICE. The sequence itself must have sampled one since its last admission.
"""

from __future__ import annotations

from collections import Counter

from tailrace.engine.parts import make_work, rows_made, share_from
from tailrace.engine.plan import Left, charge_turn, count_service, count_slots, preempt
from tailrace.engine.sequence import Sequence

LONG = 512  # Uncomputed tokens of a long prompt.
MAX_LONG = 4  # Long prompts of other users that are computed at once; then no further long one is begun.

Cached = list[list[int]]  # the cached blocks that the members of a pair start from


def admit_waiting(left: Left, sequence: Sequence) -> Left:
    """Admit a waiting sequence if the rest of the step suffices. Return what is left then."""
    user = sequence.user
    if sequence.request.compilations:
        return left
    claims = bool(left.yielding) and is_within_part(left, sequence)
    slots_free = count_slots(sequence) <= left.slots or claims
    if not may_overtake(left, sequence) or not slots_free or (sequence.wants_rows and left.rows == 0):
        return close(left, sequence)
    cached = [left.cache.match_prefix(member) for member in sequence.pair]
    uncached = count_uncached(left, sequence, cached)
    if uncached > LONG and count_long_prompts(left, user) >= MAX_LONG:
        left.closed.add(user)
        return left
    need = count_blocks(left, sequence, cached)
    if fits(left, sequence, need):
        return _admit(left, sequence, cached, need)
    roomy = claim_room(left, sequence, cached) if claims else None
    if roomy is None:
        return close(left, sequence)
    return _admit(roomy, sequence, cached, count_blocks(roomy, sequence, cached))


def close(left: Left, sequence: Sequence) -> Left:
    """Close the step for the sequence's user and for those who may not overtake the sequence, which does not fit."""
    left.closed.add(sequence.user)
    if is_within_part(left, sequence):
        left.full = True
    else:
        left.crowded = True
    return left


def may_overtake(left: Left, sequence: Sequence) -> bool:
    """Return whether the sequence may be admitted although earlier sequences of this step did not fit."""
    if left.held[sequence.user] == 0 and len(left.shares) > 1:
        return True
    return not left.full and (not left.crowded or is_within_part(left, sequence))


def is_within_part(left: Left, sequence: Sequence) -> bool:
    """Return whether the user has an equal part of the slots at most, with this sequence, or has none running."""
    held = left.held[sequence.user]
    return held == 0 or held + count_slots(sequence) <= left.parts[sequence.user]


def _admit(left: Left, sequence: Sequence, cached: Cached, need: int) -> Left:
    computed = [len(found) * left.cache.block_size for found in cached]
    parts = share_from(sequence, left.cache, computed, left.prompt_tokens, left.rows)
    left.rows -= rows_made(sequence, [done + part for done, part in zip(computed, parts, strict=True)])
    left.plan.admit.append((sequence, cached))
    left.plan.work += make_work(sequence, parts)
    blocks = {block for found in cached for block in found}
    left.attached |= blocks
    find_written_blocks(left).difference_update(blocks)
    left.budget -= sum(parts)
    left.chunk -= sum(parts)
    left.free -= need  # its whole prompt is reserved, so that the next admitted request can't starve it
    left.slots -= count_slots(sequence)
    left.held[sequence.user] += count_slots(sequence)
    charge_turn(left, sequence, sum(parts))
    return left


def fits(left: Left, sequence: Sequence, need: int) -> bool:
    """Return whether the sequence's slots and the needed blocks are free."""
    free = left.free - count_promised_blocks(left, sequence.user)
    return count_slots(sequence) <= left.slots and need <= free


def count_blocks(left: Left, sequence: Sequence, cached: Cached) -> int:
    """Return the number of free blocks that the sequence's whole prompt takes."""
    cache, found = left.cache, [block for blocks in cached for block in blocks]
    released = Counter(block for victim in left.plan.preempt for member in victim.pair for block in member.blocks)
    revived = sum(cache.references[block] == released[block] for block in found)  # Free now, but not once attached.
    copied = find_written_blocks(left).intersection(found)  # By a writer.
    whole = sum(cache.blocks_for(len(member.tokens) + 1) for member in sequence.pair)
    return whole - len(found) + revived + len(copied)


def find_written_blocks(left: Left) -> set[int | None]:
    """Return the blocks that the planned work writes, and that nobody else refers to."""
    if left.written is None:
        left.written = {left.cache.own_block(member) for member, _ in left.plan.work}
    return left.written


def count_uncached(left: Left, sequence: Sequence, cached: Cached) -> int:
    """Return the number of tokens that must be computed for the prompt."""
    return sum(
        len(member.tokens) - len(found) * left.cache.block_size
        for member, found in zip(sequence.pair, cached, strict=True)
    )


def count_long_prompts(left: Left, user: str) -> int:
    """Return the number of other users' long prompts that are partly computed, or begun in this step."""
    begun = (sequence for sequence, _ in left.plan.admit)
    others = (sequence for sequence in (*left.prefills, *begun) if sequence.user != user)
    return sum(sum(member.num_uncomputed for member in sequence.pair) > LONG for sequence in others)


def count_promised_blocks(left: Left, user: str) -> int:
    """Return the number of blocks that the rests of other users' prompts will take."""
    prefills = [sequence for sequence in left.prefills if sequence.user != user and sequence in left.alive]
    if not prefills:
        return 0
    planned, cache = dict(left.plan.work), left.cache
    return sum(
        max(0, cache.blocks_for(len(member.tokens) + 1) - max(len(member.blocks), cache.blocks_for(done)))
        for sequence in prefills
        for member in sequence.pair
        for done in [member.num_computed + planned.get(member, 0)]
    )


# ---- preemption for a user within an equal part of the slots


def list_yielding(alive: list[Sequence]) -> list[Sequence]:
    """Return the sequences that may be preempted for another user. The last one of `alive` is the first."""
    return [sequence for sequence in reversed(alive) if has_advanced(sequence)]


def claim_room(left: Left, sequence: Sequence, cached: Cached) -> Left | None:
    """Return what is left after the fewest preemptions that make the sequence fit. None: nobody is preempted for it."""
    roomy = left.copy()
    for victim in left.yielding:
        if yields_to(roomy, victim, sequence):
            preempt(roomy, victim)
            if fits(roomy, sequence, count_blocks(roomy, sequence, cached)):
                return roomy
    return None


def yields_to(left: Left, victim: Sequence, sequence: Sequence) -> bool:
    """Return whether the victim's user got more and has sampled enough, and its priority is not smaller.

    The victim's user keeps an equal part of the slots, unless the sequence's user has no running sequence.
    """
    ahead = left.shares[victim.user].tokens > left.shares[sequence.user].tokens
    paid = left.service[victim.user] >= count_service(victim)
    rich = left.held[victim.user] - count_slots(victim) >= left.parts[victim.user]
    fair = rich or left.held[sequence.user] == 0
    return ahead and paid and fair and victim.request.order[0] >= sequence.request.order[0]


def has_advanced(victim: Sequence) -> bool:
    """Return whether the sequence has sampled a token since its last admission. A replay never counts as advanced."""
    return victim.walker is None and victim.num_output > victim.num_admitted
