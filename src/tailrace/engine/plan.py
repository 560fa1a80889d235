"""The plan of a step, and what is left of the step while it is planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.sequence import Sequence
from tailrace.engine.shares import MOST_SERVICE, Share

LEAST_SERVICE = 32  # Tokens that a user samples at least for each preemption.
RECOMPUTED = 8  # Tokens that may be computed again for each sampled token.

Work = list[tuple[Sequence, int]]  # the sequences of a step, and how many tokens each computes


@dataclass(slots=True)
class Plan:
    """A step's plan.

    - preempt: sequences that release everything first.
    - admit: sequences, with the cached blocks that they and their unconditional ones start from.
    - work: (sequence, tokens), an unconditional sequence right after its conditional one.
    - spare: tokens that the step can still compute.
    - decodes: each sequence of `work` computes its last token alone, after at least one token of its output. None is
      part of a pair.
    """

    preempt: list[Sequence] = field(default_factory=list)
    admit: list[tuple[Sequence, list[list[int]]]] = field(default_factory=list)
    work: Work = field(default_factory=list)
    spare: int = 0
    decodes: bool = False


@dataclass(slots=True)
class Left:
    """What is left of a step.

    - plan: so far.
    - alive: running sequences that are not preempted; the last one is the first to yield.
    - held: slots of each user's running and admitted sequences, if several users have requests. parts: each user's
      equal part of all slots, by weight.
    - yielding: sequences of `alive` that may be preempted for another user; the first one is the first to yield.
    - prefills: running sequences with a part of their prompt, of which some may be preempted.
    - shares: of the users, with the prompt tokens of this plan. turn: the number of the last turn.
    - service: of the users (Share.service), without what the preemptions of this plan cost.
    - budget, chunk: tokens, and prompt tokens. rows: rows of logits without sampling. free: blocks. slots: slots.
    - attached: cached blocks from which admitted sequences start. written: blocks that the planned work writes, from
      the first admission on.
    - closed: users of whom no more is admitted in this step. crowded: only users within their part of the slots are
      admitted. full: only users without a running sequence are.
    """

    plan: Plan
    cache: BlockCache
    alive: list[Sequence]
    held: Counter[str]
    parts: dict[str, int]
    yielding: list[Sequence]
    prefills: list[Sequence]
    shares: dict[str, Share]
    service: dict[str, int]
    budget: int
    chunk: int
    rows: int
    free: int
    slots: int
    turn: int
    attached: set[int] = field(default_factory=set)
    written: set[int | None] | None = None
    closed: set[str] = field(default_factory=set)
    crowded: bool = False
    full: bool = False

    @property
    def prompt_tokens(self) -> int:
        """The most prompt tokens that may be planned."""
        return min(self.budget, self.chunk)

    def copy(self) -> Left:
        """Return a copy whose sequences can be preempted without a change of this one."""
        plan = replace(self.plan, preempt=[*self.plan.preempt], work=[*self.plan.work])
        lists = {"alive": [*self.alive], "yielding": [*self.yielding]}
        return replace(self, plan=plan, held=Counter(self.held), service=dict(self.service), **lists)


def preempt(left: Left, victim: Sequence) -> None:
    """Preempt a sequence: its blocks, its slots and its part of the budget are free again."""
    plan, cache = left.plan, left.cache
    gone = [member for other in plan.preempt for member in other.pair]
    left.alive.remove(victim)
    left.service[victim.user] -= count_service(victim)
    left.held[victim.user] -= count_slots(victim)
    if victim in left.yielding:
        left.yielding.remove(victim)
    plan.preempt.append(victim)
    left.free += cache.count_freed_blocks([*gone, *victim.pair], left.attached)
    left.free -= cache.count_freed_blocks(gone, left.attached)
    left.slots += count_slots(victim)
    for entry in [entry for entry in plan.work if entry[0] in victim.pair]:
        plan.work.remove(entry)
        member, tokens = entry
        left.free += cache.count_needed_blocks(member, member.num_computed + tokens)
        left.budget += tokens


def count_service(victim: Sequence) -> int:
    """Return the service that the preemption of a sequence costs its user: tokens that the user must have sampled."""
    again = sum(len(member.tokens) for member in victim.pair)
    return min(MOST_SERVICE, max(LEAST_SERVICE, -(-again // RECOMPUTED)))


def count_slots(sequence: Sequence) -> int:
    """Return the number of slots of a sequence, its unconditional one and its forks."""
    return (1 + len(sequence.forks)) * len(sequence.pair)


def count_held_slots(running: list[Sequence]) -> Counter[str]:
    """Return the number of slots of each user's sequences."""
    held = Counter[str]()
    for sequence in running:
        held[sequence.user] += count_slots(sequence)
    return held


def charge_turn(left: Left, sequence: Sequence, tokens: int) -> None:
    """Add a turn of prompt tokens to the user's share in this plan."""
    left.turn += 1
    share = left.shares[sequence.user]
    left.shares[sequence.user] = share._replace(tokens=share.tokens + share.divide(tokens), turn=left.turn)
