"""One request in the sampler, as its methods see it: what it asks, and what its sequence has said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.history import History
from tailrace.sampling.sequence_state import SequenceState

T = TypeVar("T")
PendingUpdate = tuple[
    int, float | None
]  # a token, and the log-probability that a state is updated with once it is committed


@dataclass(slots=True)
class Slot:
    """One occupied slot.

    edits, refinements: the methods it wants, in order. updates: of the tokens drawn and not yet committed, in order:
    each with the log-probability that its methods' state is updated with if it stands; None: the state stays. basis:
    the candidates whose probabilities the state follows, at the row looked at last. derived: made once from the
    parameters. took_s: processor time of its last draw, where that may be costly. turns: one of its edits does
    something else after every token.
    """

    params: SamplingParams
    key: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    num_prompt: int
    num_output: int
    history: History | None
    edits: tuple[str, ...]
    refinements: tuple[str, ...]
    sequence_state: SequenceState
    derived: dict[str, Any] = field(default_factory=dict)
    updates: list[PendingUpdate] = field(default_factory=list)
    basis: Candidates | None = None
    took_s: float = 0.0
    turns: bool = False

    def once(self, name: str, make: Callable[[], T]) -> T:
        """`make()`, the first time; afterwards what it made."""
        if name not in self.derived:
            self.derived[name] = make()
        return self.derived[name]

    @property
    def state(self) -> dict[str, float]:
        """The state that its refinements carry from token to token."""
        return self.sequence_state.state

    @property
    def banned(self) -> dict[int, set[int]]:
        """Output position → ids that may not be drawn there."""
        return self.sequence_state.banned

    @property
    def moves(self) -> bool:
        """The program changes from token to token."""
        return self.turns or bool(self.sequence_state.forced)

    @property
    def reported(self) -> bool:
        """Logprobs or entropies are asked for."""
        return self.params.logprobs is not None or self.params.report_entropy

    @property
    def forced(self) -> int | None:
        """The token that the next position must have."""
        return self.sequence_state.forced.get(self.num_output)
