"""One request in the sampler as the step sees it: what its methods do at the next position, and how its sequence goes
on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tailrace.kernels.program import MAX_EDITS, Dense, Edit
from tailrace.sampling.pipeline import EDITS, REFINEMENTS, beyond_kernels
from tailrace.sampling.slot import PendingUpdate, Slot


@dataclass(slots=True)
class RequestSlot(Slot):
    """An occupied slot, with the methods that `edits` and `refinements` name."""

    def __post_init__(self) -> None:
        self.begin_edit()

    @property
    def named_edits(self) -> Iterator[tuple[str, Sequence[Edit]]]:
        """What each of its edits does at the next position."""
        return ((name, EDITS[name].edits(self)) for name in self.edits)

    @property
    def program(self) -> list[Edit]:
        """What the edits do at the next position."""
        return [edit for _, edits in self.named_edits for edit in edits]

    @property
    def kernel_program(self) -> list[Edit]:
        """The same without what no kernel has."""
        program: list[Edit] = [edit for edit in self.program if not isinstance(edit, Dense)]
        if len(program) > MAX_EDITS:
            raise AssertionError(f"{len(program)} edits in one program")
        return program

    @property
    def unsupported(self) -> bool:
        """No kernels have all that it asks for: see `beyond_kernels`."""
        return self.once("unsupported", lambda: beyond_kernels(self.params))

    @property
    def moves_with_drafts(self) -> bool:
        """More than the counts of its history changes with each draft: the kernels want a program per row
        (backends/draft_programs.py)."""
        return not self.unsupported and (self.moves or self.params.penalty_last_n >= 0)

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
