"""A request and its sequences: what they hold, and which changes of state are legal.

    WAITING ──admit──► RUNNING ──finish──► FINISHED
       ▲                 │  ▲ └───fail───► FAILED        finish and fail are legal from every living state
       └────preempt──────┘  │
    FORK ────────fork───────┘                            forks (n > 1) wait here for the shared prefill

A sequence ends in exactly one terminal state, because nothing leads out of one. Knows nothing of blocks or models.
"""

from __future__ import annotations

import enum
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.engine.checks.banned_strings import BannedStringCheck, Bans
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.wanted_rows import WantedRows
from tailrace.errors import TailraceError
from tailrace.grammar.base import Compiled
from tailrace.params import SamplingParams
from tailrace.sampling import SequenceState
from tailrace.wire.messages import Replay

FORKS_WITH_PREFILL = (
    16  # forks that sample in the step that computes their prompt; one where a sample is known to take long
)


class Phase(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = enum.auto()
    FORK = enum.auto()
    RUNNING = enum.auto()
    UNCONDITIONAL = enum.auto()  # for good: it is computed and ended with its conditional sequence
    FINISHED = enum.auto()
    FAILED = enum.auto()


LIVING = (Phase.WAITING, Phase.FORK, Phase.RUNNING)
TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.WAITING, "admit"): Phase.RUNNING,
    (Phase.RUNNING, "preempt"): Phase.WAITING,
    (Phase.FORK, "fork"): Phase.RUNNING,
    **{(state, "finish"): Phase.FINISHED for state in LIVING},
    **{(state, "fail"): Phase.FAILED for state in LIVING},
}


class StopCheck(Protocol):
    """Ends a sequence by its generated tokens. stop_reason: its name, where the front end can't find the reason
    itself."""

    @property
    def stop_reason(self) -> str | None: ...

    def push(self, token: int) -> bool:
        """One more token that is sent. True if the sequence ends with it."""
        ...


class IllegalTransitionError(RuntimeError):
    """A bug of the engine. The sequence was not changed."""


@dataclass(eq=False, slots=True)
class Request:
    """One submitted request: `client` and (id, epoch) name it; `order` sorts it: smaller runs first.

    Times are in seconds. min_host_s: processor time beside the model that each of its rows is charged with at least.
    """

    client: bytes
    id: str
    epoch: int
    params: SamplingParams
    order: tuple[int, int]  # priority, then arrival
    max_len: int  # of prompt and output together
    eos_token_ids: tuple[int, ...] = ()  # of the model
    adapter: int = 0  # its number among the runner's; 0: none
    min_host_s: float = 0.0
    arrived_s: float = field(default_factory=time.monotonic)
    queued_s: float | None = None  # from its arrival until it was first admitted
    compiling: Future[Compiled] | None = None  # its grammar, until it is ready
    banning: Future[Bans] | None = None  # its banned strings, until they are ready
    grown_bytes: int = (
        0  # by which the process grew while its outputs were processed, where that was measured (memory.py)
    )
    sequences: list[Sequence] = field(default_factory=list)
    replay: Replay | None = None  # nothing is generated: the output is there already
    cost_unknown: bool = True  # nothing has been sampled: the cost of a sample is an estimate

    @property
    def name(self) -> tuple[bytes, str, int]:
        """Its key among all requests."""
        return (self.client, self.id, self.epoch)

    @property
    def shared_name(self) -> tuple[bytes, str]:
        """The name of the call that it came with: one call may have several prompts."""
        return (self.client, self.id)

    def estimate_costs(self, host_s: float) -> None:
        """Sequences that have not sampled yet are taken to cost as much as the first one that has."""
        if self.cost_unknown:
            self.cost_unknown = False
            for sequence in self.sequences:
                if sequence.num_output == 0:
                    sequence.host_s = host_s

    def ends_output(self, token: int) -> bool:
        """The token is EOS or one of its stop ids."""
        return (token in self.eos_token_ids and not self.params.ignore_eos) or token in self.params.stop_token_ids

    @property
    def compilations(self) -> list[Future[Any]]:
        """The compilations that must end before it can be admitted."""
        return [future for future in (self.compiling, self.banning) if future is not None]

    def cancel_compilations(self) -> None:
        """The request has ended. A grammar may serve others and goes on; its bans serve nobody else."""
        if self.banning is not None:
            self.banning.cancel()
        self.compiling = self.banning = None

    @property
    def done(self) -> bool:
        """All sequences have ended."""
        return all(sequence.phase not in LIVING for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence.

    tokens: prompt and output. While a step is planned ahead of a sample that is not known yet, the last token is a
    reference to that sample (in_flight.py). num_computed: how many tokens have keys and values in the cache. blocks:
    the cache blocks that hold them.
    num_published: how many of the blocks can be found by their hash; hashes: the chain of these hashes. slot: its place
    in the sampler, in the block tables and among the states, −1 while it has none. state_end: the position behind the
    last token of its last pass, drafts included. sequence_state: what the sampler keeps of it between two slots.
    """

    request: Request
    index: int
    key: int
    num_prompt: int
    tokens: list[int]
    phase: Phase = Phase.WAITING
    slot: int = -1
    num_computed: int = 0
    state_end: int = 0
    host_s: float = 0.0  # processor time that its last sample took beside the model; before the first one an estimate
    num_cached: int = 0  # prompt tokens found in the prefix cache when it was first admitted
    started: bool = False  # its first tokens have been sent
    # not sent yet: of each step, how many drafts there were and how many were accepted
    draft_counts: list[int] = field(default_factory=list)
    wanted: WantedRows | None = None  # where logits are wanted that nothing is sampled from
    # where the output is there already, and a part of `tokens`: the sequence as far as it has been walked along again
    walker: Sequence | None = None
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    sequence_state: SequenceState = field(default_factory=SequenceState)
    bans: BannedStringCheck | None = None  # where text is banned
    thinking: ThinkingBudgetCheck | None = None  # where thinking has a budget
    stop_checks: tuple[StopCheck, ...] = ()  # in the order in which they are asked
    constraint: StructuredOutput | None = None  # where a grammar constrains the text
    # where guidance needs one: the same output after the negative prompt; nothing is sampled from it
    unconditional: Sequence | None = None

    @property
    def pair(self) -> tuple[Sequence, ...]:
        """The sequence and its unconditional one, if it has one. They are admitted, computed, preempted and ended
        together."""
        return (self,) if self.unconditional is None else (self, self.unconditional)

    @property
    def samples_with_prefill(self) -> bool:
        """It samples in the step that computes the prompt it shares with its forks. The other forks compute the last
        token themselves."""
        return self.index < (1 if self.host_s else FORKS_WITH_PREFILL)

    @property
    def waits_for_mask(self) -> bool:
        """The mask of its grammar is late."""
        return self.constraint is not None and self.constraint.waits

    @property
    def is_conditional(self) -> bool:
        """It is not the unconditional sequence of a pair."""
        return self is self.request.sequences[self.index]

    @property
    def prefilling(self) -> bool:
        """More than the last token is yet to be computed."""
        return any(member.num_uncomputed > 1 for member in self.pair)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are yet to be computed: 1 when decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def wants_rows(self) -> bool:
        """Logits are wanted that nothing is sampled from, and not all have been had."""
        return self.wanted is not None and self.wanted.next is not None

    @property
    def reusable(self) -> int:
        """So many tokens, from the first on, may be found in the prefix cache: of cached positions there are no
        logits."""
        last = len(self.tokens) if self.wanted is None or self.wanted.next is None else self.wanted.next
        return last - 1

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be sampled."""
        return self.request.max_len - len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def forks(self) -> list[Sequence]:
        """The sequences that wait for this one's prefill."""
        if self.index:
            return []
        return [sequence for sequence in self.request.sequences if sequence.phase is Phase.FORK]

    def append(self, token: int, after_draft: bool) -> None:
        """A token becomes output. after_draft: the token before it was a draft, which is computed already."""
        for member in self.pair:
            member.num_computed += after_draft
            member.tokens.append(token)

    def advance(self, event: str) -> None:
        """Change the phase.

        Raises:
            IllegalTransitionError: the table has no such change.
        """
        target = TRANSITIONS.get((self.phase, event))
        if target is None:
            raise IllegalTransitionError(
                f"sequence {self.request.id}/{self.index} can't {event} while {self.phase.name}"
            )
        self.phase = target


Failures = list[tuple[Sequence, TailraceError]]  # sequences that must end, and why


def order(sequence: Sequence) -> tuple[int, int, int]:
    """The key that sorts sequences: priority, arrival, index."""
    return (*sequence.request.order, sequence.index)
