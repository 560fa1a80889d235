"""The budget of processor time on the host: which sequences wait for others of their call or user, and which waiting
ones may be admitted beside those that run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import accumulate, islice

from tailrace.engine.sequence import Phase, Sequence
from tailrace.engine.wanted_rows import MAX_REPLAYS


def idle_sequences(running: list[Sequence], budget_s: float) -> set[Sequence]:
    """Return sequences that wait for a mask, or for others of the same call or user."""
    late = {sequence for sequence in running if sequence.waits_for_mask}
    return late | resting_sequences([sequence for sequence in running if sequence not in late], budget_s)


def resting_sequences(running: list[Sequence], budget_s: float) -> set[Sequence]:
    """Return sequences that wait for others of the same call (Request.shared_name), or of the same user if several
    users run.

    They wait if all together would take more than `budget_s` of the step, without the model. Those with the shortest
    output go first, so each gets its turn.
    """
    resting = find_beyond_budget(running, budget_s, lambda sequence: sequence.request.shared_name)
    if len({sequence.user for sequence in running}) > 1:
        going = [sequence for sequence in running if sequence not in resting]
        resting |= find_beyond_budget(going, budget_s, lambda sequence: sequence.user)
    return resting


def find_beyond_budget(running: list[Sequence], budget_s: float, name: Callable[[Sequence], Hashable]) -> set[Sequence]:
    """Return the sequences for which the budget of all with the same name has no time left."""
    by_name: dict[Hashable, list[Sequence]] = {}
    for sequence in running:
        by_name.setdefault(name(sequence), []).append(sequence)
    resting: set[Sequence] = set()
    for members in by_name.values():
        if sum(sequence.host_s for sequence in members) <= budget_s:
            continue
        members.sort(key=lambda sequence: sequence.num_output)
        taken = accumulate(sequence.host_s for sequence in members)
        resting.update(s for s, total in zip(members[1:], islice(taken, 1, None), strict=True) if total > budget_s)
    return resting


def select_admissible(
    running: list[Sequence], waiting: Iterable[Sequence], budget_s: float, several: bool
) -> Iterator[Sequence]:
    """Yield the sequences in turn that may be admitted, and those that run.

    Sequences that may be expensive are left out while others of their call take all of `budget_s`, or others of their
    user while several users have requests. Replays are left out while MAX_REPLAYS run.
    """
    taken: dict[Hashable, float] = {}
    replays = sum(len(sequence.pair) for sequence in running if sequence.walker is not None)
    for sequence in running:
        for name in host_names(sequence, several):
            taken[name] = taken.get(name, 0.0) + sequence.host_s
    for sequence in waiting:
        if sequence.phase is Phase.RUNNING:
            yield sequence
            continue
        names = host_names(sequence, several)
        before = max(taken.get(name, 0.0) for name in names)
        if sequence.waits_for_mask or (before and sequence.host_s and before + sequence.host_s > budget_s):
            continue
        if sequence.walker is not None:
            if replays and replays + len(sequence.pair) > MAX_REPLAYS:
                continue
            replays += len(sequence.pair)
        for name in names:
            taken[name] = taken.get(name, 0.0) + sequence.host_s
        yield sequence


def host_names(sequence: Sequence, several: bool) -> tuple[Hashable, ...]:
    """Return what shares the sequence's budget: its call and, with several users, its user."""
    return (sequence.request.shared_name, sequence.user) if several else (sequence.request.shared_name,)
