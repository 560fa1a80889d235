"""The state that a sequence takes from slot to slot: after a preemption, or to a fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from tailrace.errors import ParameterError
from tailrace.sampling.validation import check_kind, checked_few


@dataclass(slots=True)
class SequenceState:
    """The state that a sequence takes from slot to slot, besides its tokens. The slot and its owner share the object.

    - state: the values that the methods have learnt.
    - banned: output position → ids that can't be drawn there.
    - mask: uint32 [⌈V / 32⌉], never changed in place. A token whose bit is 0 can't be drawn at any position.
    - forced: output position → the forced id.
    """

    state: dict[str, float] = field(default_factory=dict)
    banned: dict[int, set[int]] = field(default_factory=dict)
    forced: dict[int, int] = field(default_factory=dict)
    mask: np.ndarray | None = None

    def force(self, position: int, tokens: Sequence[int]) -> None:
        """Force these tokens as the output from this position on."""
        self.forced.update(enumerate(tokens, start=position))

    def forget(self, position: int) -> None:
        """Drop the forced tokens before this position."""
        for place in [place for place in self.forced if place < position]:
            del self.forced[place]

    def copy_from(self, other: SequenceState) -> None:
        """Copy another sequence's state. Keep this sequence's own mask."""
        self.state.update(other.state)
        self.forced.update(other.forced)
        self.mask = other.mask if self.mask is None else self.mask
        self.banned.update({place: set(ids) for place, ids in other.banned.items()})


def check_sequence_state(sequence_state: SequenceState | None, vocab_size: int) -> None:
    """Raise ParameterError unless its ids and its mask fit this vocabulary: kernels read them without checks."""
    if sequence_state is None:
        return
    check_kind("sequence_state", sequence_state, SequenceState)
    checked_few(
        "sequence_state",
        [*sequence_state.forced.values(), *chain.from_iterable(sequence_state.banned.values())],
        vocab_size,
    )
    mask, words = sequence_state.mask, -(-vocab_size // 32)
    if mask is None:
        return
    if (
        not isinstance(mask, np.ndarray)
        or mask.dtype != np.uint32
        or mask.shape != (words,)
        or not mask.flags.c_contiguous
    ):
        raise ParameterError(
            f"sequence_state.mask must be contiguous uint32 [{words}], got {type(mask).__name__}", "sequence_state"
        )
