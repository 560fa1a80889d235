"""A request and its sequences: what they hold, and which changes of state are legal.

    WAITING ──admit──► RUNNING ──finish──► FINISHED
       ▲                 │  ▲ └───fail───► FAILED        finish and fail are legal from every living state
       └────preempt──────┘  │
    FORKING ─────fork───────┘                            workers (n > 1) wait here for the shared prefill

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
from tailrace.grammar.base import Compiled
from tailrace.params import SamplingParams
from tailrace.sampling import SequenceState

EARLY_DRAWS = 16  # of one prompt in the step that computes it; only one where a draw is known to take long


class State(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = enum.auto()
    FORKING = enum.auto()
    RUNNING = enum.auto()
    FOLLOWING = enum.auto()  # a companion, always: it goes where its sequence goes
    FINISHED = enum.auto()
    FAILED = enum.auto()


LIVING = (State.WAITING, State.FORKING, State.RUNNING)
TRANSITIONS: dict[tuple[State, str], State] = {
    (State.WAITING, "admit"): State.RUNNING,
    (State.RUNNING, "preempt"): State.WAITING,
    (State.FORKING, "fork"): State.RUNNING,
    **{(state, "finish"): State.FINISHED for state in LIVING},
    **{(state, "fail"): State.FAILED for state in LIVING},
}


class StopCheck(Protocol):
    """Something that ends a sequence by what it says. push: one more token that goes out; True if it ends there. stop_reason: its
    name, where the front end can't find the reason itself."""

    @property
    def stop_reason(self) -> str | None: ...

    def push(self, token: int) -> bool: ...


class IllegalTransitionError(RuntimeError):
    """Our bug: the sequence was not changed."""


@dataclass(eq=False, slots=True)
class Request:
    """One submitted request: `client` and (id, epoch) name it; `order` sorts it: smaller runs first."""

    client: bytes
    id: str
    epoch: int
    params: SamplingParams
    order: tuple[int, int]  # priority, then arrival
    max_len: int  # of prompt and output together
    arrived_s: float = field(default_factory=time.monotonic)
    queued_s: float | None = None  # from its arrival until it was first admitted
    compiling: Future[Compiled] | None = None  # its grammar, until it is ready
    grown: int = 0  # bytes that the process has grown by in its commits, where that was looked at (memory.py)
    banning: Future[Bans] | None = None  # what it bans, until it is ready
    adapter: int = 0  # its number among the runner's; 0: none
    sequences: list[Sequence] = field(default_factory=list)
    least_s: float = 0.0  # of processor time, that each row of its draws is taken to need beside the model, whatever the last one took
    guessing: bool = True  # nothing has been drawn: what a draw costs is a guess

    @property
    def name(self) -> tuple[bytes, str, int]:
        """Its key among all requests."""
        return (self.client, self.id, self.epoch)

    @property
    def shared_name(self) -> tuple[bytes, str]:
        """That of all that came along with it: the prompts of one call."""
        return (self.client, self.id)

    def guess_costs(self, host_s: float) -> None:
        """Those that have not drawn yet are taken to need as long as one that has."""
        if self.guessing:
            self.guessing = False
            for sequence in self.sequences:
                if sequence.num_output == 0:
                    sequence.host_s = host_s

    @property
    def awaited(self) -> list[Future[Any]]:
        """What it can't begin without."""
        return [future for future in (self.compiling, self.banning) if future is not None]

    def wait_no_more(self) -> None:
        """It has ended: what only it bans need not be compiled."""
        if self.banning is not None:
            self.banning.cancel()
        self.compiling = self.banning = None

    @property
    def done(self) -> bool:
        """All sequences have ended."""
        return all(sequence.state not in LIVING for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence. tokens: prompt and output, the last one a reference to its draw while a step is planned ahead of it (ahead.py);
    computed: how many of them have keys and values in the cache; blocks: those that hold them; published: how many of the blocks are
    findable by their hash, whose chain is `hashes`; slot: its place in the sampler and the block tables, −1 while it
    has none; sequence_state: what the sampler keeps of it, also while it has none."""

    request: Request
    index: int
    key: int
    num_prompt: int
    tokens: list[int]
    state: State = State.WAITING
    slot: int = -1
    computed: int = 0
    host_s: float = 0.0  # of processor time that its last draw took beside the model; before the first one a guess
    cached: int = 0  # prompt tokens found in the prefix cache when it was first admitted
    told: bool = False  # its first tokens have been sent
    # not yet told: of each step, how many drafts there were and how many stood
    drafts: list[int] = field(default_factory=list)
    scored: int = 1  # prompt tokens whose logprobs have been sent, or need not be; the first has none
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    published: int = 0
    sequence_state: SequenceState = field(default_factory=SequenceState)
    watch: BannedStringCheck | None = None  # where text is banned
    thinking: ThinkingBudgetCheck | None = None  # where thoughts have a budget
    stop_checks: tuple[StopCheck, ...] = ()  # what else may end it, in the order in which they are asked
    constraint: StructuredOutput | None = None  # where a grammar says what it may be
    # where guidance asks for one: the same output after the negative prompt; it never draws
    companion: Sequence | None = None

    @property
    def members(self) -> tuple[Sequence, ...]:
        """Those that are admitted, computed, preempted and ended together: the sequence and its companion."""
        return (self,) if self.companion is None else (self, self.companion)

    @property
    def draws_early(self) -> bool:
        """In the step that computes the prompt which it shares with its workers; the others draw from what they compute themselves."""
        return self.index < (1 if self.host_s else EARLY_DRAWS)

    @property
    def waits(self) -> bool:
        """For a mask that is late."""
        return self.constraint is not None and self.constraint.waits

    @property
    def leads(self) -> bool:
        """It is nobody's companion."""
        return self is self.request.sequences[self.index]

    @property
    def prefilling(self) -> bool:
        """More than the last token is yet to be computed."""
        return any(member.remaining > 1 for member in self.members)

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are yet to be computed: 1 when decoding."""
        return len(self.tokens) - self.computed

    @property
    def scoring(self) -> bool:
        """Logprobs of its prompt are asked for and not all sent: every token of a chunk gets logits."""
        return self.request.params.prompt_logprobs is not None and self.scored < self.num_prompt

    @property
    def room(self) -> int:
        """Tokens that may still be drawn."""
        return self.request.max_len - len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def workers(self) -> list[Sequence]:
        """Those that wait for this sequence's prefill."""
        if self.index:
            return []
        return [sequence for sequence in self.request.sequences if sequence.state is State.FORKING]

    def advance(self, event: str) -> None:
        """Change state.

        Raises:
            IllegalTransitionError: the table has no such change.
        """
        target = TRANSITIONS.get((self.state, event))
        if target is None:
            raise IllegalTransitionError(
                f"sequence {self.request.id}/{self.index} can't {event} while {self.state.name}"
            )
        self.state = target
