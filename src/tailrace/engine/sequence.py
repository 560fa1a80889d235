"""A request and its sequences: their data, and the legal changes of state.

    WAITING ──admit──► RUNNING ──finish──► FINISHED
       ▲                 │  ▲ └───fail───► FAILED
       └────preempt──────┘  │
    FORK ────────fork───────┘

finish and fail are legal from every living state. Forks (n > 1) wait in FORK for the shared prefill. A sequence ends in
exactly one terminal state, because no change leads out of one. This module knows nothing of blocks or models.
"""

from __future__ import annotations

import enum
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tailrace.drafting.prediction import PredictionReader
from tailrace.engine.checks.banned_strings import BannedStringCheck, Bans
from tailrace.engine.checks.structured_output import StructuredOutput
from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.wanted_rows import WantedRows
from tailrace.errors import TailraceError
from tailrace.grammar.base import Compiled
from tailrace.params import SamplingParams
from tailrace.sampling import SequenceState
from tailrace.wire.messages import NOBODY, Owner, Replay

# Forks that sample in the step that computes their prompt; only the sequence itself if a sample takes long.
FORKS_WITH_PREFILL = 16


class Phase(enum.Enum):
    """The phases of a sequence's life."""

    WAITING = enum.auto()
    FORK = enum.auto()
    RUNNING = enum.auto()
    UNCONDITIONAL = enum.auto()  # permanent: it is computed and ended with its conditional sequence
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
    """A check that ends a sequence by its generated tokens. stop_reason: its name, if the front end can't find the
    reason itself."""

    @property
    def stop_reason(self) -> str | None: ...

    def push(self, token: int) -> bool:
        """Add a token that is sent. True if the sequence ends with it."""
        ...


class IllegalTransitionError(RuntimeError):
    """A bug of the engine. The sequence was not changed."""


@dataclass(eq=False, slots=True)
class Request:
    """One submitted request. `client` and (id, epoch) name it; `order` sorts it: smaller runs first.

    Times are in seconds. min_host_s: the least processor time, without the model, that each of its rows is charged
    with.
    """

    client: bytes
    id: str
    epoch: int
    params: SamplingParams
    order: tuple[int, int]  # priority, then the place of its arrival, or of another arrival of its user
    max_len: int  # of prompt and output together
    eos_token_ids: tuple[int, ...] = ()  # of the model
    adapter: int = 0  # its number among the runner's; 0: none
    owner: Owner = NOBODY
    min_host_s: float = 0.0
    arrived_s: float = field(default_factory=time.monotonic)
    queued_s: float | None = None  # From its arrival to its first admission.
    compiling: Future[Compiled] | None = None  # Its grammar, until it is ready.
    banning: Future[Bans] | None = None  # Its banned strings, until they are ready.
    # About the bytes of its parameters, and by which the process grew with its outputs, if measured (memory.py).
    grown_bytes: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    replay: Replay | None = None  # an earlier output to explain; nothing is generated
    reports_progress: bool = False  # its client wants to know how much of the prompt is computed
    cost_unknown: bool = True  # the cost of a sample is an estimate until a first one is timed
    enders: frozenset[int] = field(init=False)  # the ids that end its output

    def __post_init__(self) -> None:
        eos = () if self.params.ignore_eos else self.eos_token_ids
        self.enders = frozenset((*eos, *self.params.stop_token_ids))

    @property
    def name(self) -> tuple[bytes, str, int]:
        """Its key among all requests."""
        return (self.client, self.id, self.epoch)

    @property
    def shared_name(self) -> tuple[bytes, str]:
        """The name of its call. One call may have several prompts."""
        return (self.client, self.id)

    @property
    def most_tokens(self) -> int:
        """The most tokens that it may compute: those of all its sequences at their full length."""
        return self.max_len * max(1, len(self.sequences))

    def estimate_costs(self, host_s: float) -> None:
        """Take the cost of the first timed sample as the estimate for the sequences that have not sampled yet."""
        if self.cost_unknown:
            self.cost_unknown = False
            for sequence in self.sequences:
                if sequence.num_output == 0:
                    sequence.host_s = host_s

    @property
    def sampler_params(self) -> SamplingParams:
        """The parameters for the sampler.

        Under a grammar, masks know where the output may end, so they apply min_tokens (checks/enders.py). The sampler
        would ban stop ids that are text.
        """
        if self.params.grammar is None or not self.params.min_tokens:
            return self.params
        return msgspec.structs.replace(self.params, min_tokens=0)

    @property
    def compilations(self) -> list[Future[Any]]:
        """The compilations that must end before it can be admitted."""
        return [future for future in (self.compiling, self.banning) if future is not None]

    def cancel_compilations(self) -> None:
        """Stop waiting for compilations, since the request has ended. Its bans are cancelled; its grammar may serve
        others."""
        if self.banning is not None:
            self.banning.cancel()
        self.compiling = self.banning = None

    @property
    def done(self) -> bool:
        """True if all sequences have ended."""
        return all(sequence.phase not in LIVING for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence.

    - tokens: prompt and output. While a step is planned before a sample is known, the last token is a reference to that
      sample (in_flight.py).
    - num_computed: how many tokens have keys and values in the cache. blocks: the cache blocks that hold them.
    - num_published: how many of the blocks can be found by their hash. hashes: the chain of these hashes.
    - slot: its place in the sampler, in the block tables and among the states; −1: no slot.
    - state_start: the first position whose state its ring still has. Position 0 needs none.
    - output_snapshot: the hash of the snapshot within its output (state_snapshots.py).
    - sequence_state: the sampler's data of the sequence between two slots.
    """

    request: Request
    index: int
    key: int
    num_prompt: int
    tokens: list[int]
    phase: Phase = Phase.WAITING
    slot: int = -1
    num_computed: int = 0
    state_start: int = 0
    output_snapshot: bytes | None = None
    host_s: float = 0.0  # Processor time of its last sample, without the model. At first an estimate.
    num_cached: int = 0  # Prompt tokens that came from the prefix cache at its first admission.
    num_admitted: int = 0  # Output tokens that it had at its last admission.
    num_charged: int = 0  # Prompt tokens, from the first on, that its user has been charged with, or that were cached.
    started: bool = False  # Its first tokens were sent.
    # Of each step, the numbers of drafts and of accepted drafts; not sent yet.
    draft_counts: list[int] = field(default_factory=list)
    wanted: WantedRows | None = None  # the places whose logits are needed without sampling
    # For a replay, whose output is part of `tokens`: the sequence up to the current place of the walk.
    walker: Sequence | None = None
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    sequence_state: SequenceState = field(default_factory=SequenceState)
    bans: BannedStringCheck | None = None  # If text is banned.
    thinking: ThinkingBudgetCheck | None = None  # If thinking has a budget.
    stop_checks: tuple[StopCheck, ...] = ()  # In the order in which they run.
    constraint: StructuredOutput | None = None  # If a grammar constrains the text.
    plain: bool = False  # Its outputs are plain (plain_outputs.py). It is set when the sequence gets its slot.
    prediction: PredictionReader | None = None  # If its output is predicted.
    # With guidance: the same output after the negative prompt; no token is sampled from it.
    unconditional: Sequence | None = None

    @property
    def user(self) -> str:
        """The user of its request."""
        return self.request.owner.user

    @property
    def pair(self) -> tuple[Sequence, ...]:
        """The sequence and its unconditional one, if it has one. They are admitted, computed, preempted and ended
        together."""
        return (self,) if self.unconditional is None else (self, self.unconditional)

    @property
    def samples_with_prefill(self) -> bool:
        """True if it samples in the step that computes the prompt it shares with its forks. The other forks compute the
        last token themselves."""
        return self.index < (1 if self.host_s else FORKS_WITH_PREFILL)

    @property
    def waits_for_mask(self) -> bool:
        """True if the mask of its grammar is late."""
        return self.constraint is not None and self.constraint.waits

    @property
    def is_conditional(self) -> bool:
        """True unless it is the unconditional sequence of a pair."""
        return self is self.request.sequences[self.index]

    @property
    def prefilling(self) -> bool:
        """True if more than the last token is yet to be computed."""
        return any(member.num_uncomputed > 1 for member in self.pair)

    @property
    def num_uncomputed(self) -> int:
        """The number of tokens whose keys and values are yet to be computed: 1 when decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def wants_rows(self) -> bool:
        """True if it still needs logits that no token is sampled from."""
        return self.wanted is not None and self.wanted.next is not None

    @property
    def reusable(self) -> int:
        """The number of tokens, from the first on, that may come from the prefix cache. Cached positions give no
        logits."""
        last = len(self.tokens) if self.wanted is None or self.wanted.next is None else self.wanted.next
        return last - 1

    @property
    def tokens_left(self) -> int:
        """The number of tokens that may still be sampled."""
        return self.request.max_len - len(self.tokens)

    @property
    def num_output(self) -> int:
        """The number of tokens sampled so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def forks(self) -> list[Sequence]:
        """The sequences that wait for this one's prefill."""
        if self.index or len(self.request.sequences) == 1:
            return []
        return [sequence for sequence in self.request.sequences if sequence.phase is Phase.FORK]

    def append(self, token: int, after_draft: bool) -> None:
        """Append a token to the output. after_draft: the token before it was a draft, which is computed already."""
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


def make_sort_key(sequence: Sequence) -> tuple[int, int, int]:
    """Return the key that sorts sequences: priority, arrival, index."""
    return (*sequence.request.order, sequence.index)
