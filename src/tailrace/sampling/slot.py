"""One request in the sampler: what it asks, what its sequence has said, and what its edits do at the next position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tailrace.kernels.program import MAX_EDITS, Dense, Edit
from tailrace.params import SamplingParams
from tailrace.sampling.candidates import Candidates
from tailrace.sampling.history import History
from tailrace.sampling.pipeline import EDITS, REFINEMENTS, beyond_kernels
from tailrace.sampling.sequence_state import SequenceState

T = TypeVar("T")
PendingUpdate = tuple[
    int, float | None
]  # a token, and the log-probability that a state is updated with once it is committed


@dataclass(slots=True)
class Slot:
    """One occupied slot.

    edits, refinements: the methods it wants, in order. updates: of the tokens drawn and not yet committed, in order: each with the
    log-probability that its methods' state is updated with if it stands; None: the state stays. basis: the candidates whose probabilities
    the state follows, at the row looked at last. derived: made once from the parameters. took_s: processor time of its last draw, where
    that may be costly. turns: one of its edits does something else after every token.
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

    def __post_init__(self) -> None:
        self.begin_edit()

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
    def program(self) -> list[Edit]:
        """What the edits do at the next position."""
        return [edit for name in self.edits for edit in EDITS[name].edits(self)]

    @property
    def kernel_program(self) -> list[Edit]:
        """The same without what no kernel has."""
        program: list[Edit] = [edit for edit in self.program if not isinstance(edit, Dense)]
        if len(program) > MAX_EDITS:
            raise AssertionError(f"{len(program)} edits in one program")
        return program

    @property
    def moves(self) -> bool:
        """The program changes from token to token."""
        return self.turns or bool(self.sequence_state.forced)

    @property
    def unsupported(self) -> bool:
        """No kernels have all that it asks for: see `beyond_kernels`."""
        return self.once("unsupported", lambda: beyond_kernels(self.params))

    @property
    def moves_with_drafts(self) -> bool:
        """More than the counts of its history changes with each draft: the kernels want a program per row (backends/draft_programs.py)."""
        return not self.unsupported and (self.moves or self.params.penalty_last_n >= 0)

    @property
    def reported(self) -> bool:
        """Logprobs or entropies are asked for."""
        return self.params.logprobs is not None or self.params.report_entropy

    @property
    def forced(self) -> int | None:
        """The token that the next position must have."""
        return self.sequence_state.forced.get(self.num_output)

    def begin_edit(self, *names: str) -> None:
        """From now on these edits are among the slot's, also where the request did not announce them."""
        self.edits = tuple(known for known in EDITS if known in (*names, *self.edits))
        self.turns = any(EDITS[name].moves(self.params) for name in self.edits)

    def extend(self, tokens: Sequence[int]) -> None:
        """More output tokens."""
        self.num_output += len(tokens)
        if self.history is not None:
            for token in tokens:
                self.history.append(token)
        if self.updates:
            self._update_state(tokens)

    def _update_state(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.updates:
                break
            drawn, logprob = self.updates.pop(0)
            if drawn != token:  # it came from elsewhere, and what was drawn after it is not what follows
                self.updates.clear()
            elif logprob is not None:
                for name in self.refinements:
                    if (learn := REFINEMENTS[name].learn) is not None:
                        learn(self, logprob)

    def update_of(self, token: int) -> PendingUpdate:
        """What the state of the slot's methods is updated with if this token stands; nothing if it was forced."""
        if self.basis is None or self.forced is not None:
            return token, None
        at = int(torch.searchsorted(self.basis.ids, token))
        kept = at < self.basis.ids.numel() and int(self.basis.ids[at]) == token
        return token, float(self.basis.logits.double().log_softmax(0)[at]) if kept else None

    def pop(self) -> None:
        """Take the last output token back. The state of its methods is the caller's to restore."""
        self.num_output -= 1
        if self.history is not None:
            self.history.pop()
