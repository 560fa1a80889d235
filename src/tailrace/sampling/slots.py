"""The sampler's one mutable state: per slot, what its request asks and what its sequence has said.

A request joins, leaves and forks in O(its own parameters); rows of a step point into the slots by index. Which stages any
slot needs (`wants`) changes only with membership. Knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tailrace.params import SamplingParams
from tailrace.sampling.history import History
from tailrace.sampling.pipeline import EDITS, REFINEMENTS


@dataclass(slots=True)
class Slot:
    """One occupied slot. num_output counts committed tokens; `stages` are the edits and refinements it wants, in order."""

    params: SamplingParams
    key: int
    eos_token_ids: tuple[int, ...]
    num_output: int
    history: History | None
    edits: tuple[str, ...] = ()
    refinements: tuple[str, ...] = ()
    extra: dict[str, torch.Tensor] = field(default_factory=dict)  # tensors that methods derive from the parameters once

    @property
    def plain_greedy(self) -> bool:
        """Nothing but the argmax of the model's own logits is asked for."""
        return self.params.greedy and not self.edits and self.params.logprobs is None


class Slots:
    """S slots over a vocabulary of V tokens.

    Raises:
        ValueError: from `join`, `leave` and `fork` for a slot out of range, taken, or empty.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size, self.device = vocab_size, torch.device(device)
        self.slots: list[Slot | None] = [None] * num_slots
        self.special = 0  # how many slots want more than the plain argmax

    def __getitem__(self, slot: int) -> Slot:
        found = self.slots[slot] if 0 <= slot < len(self.slots) else None
        if found is None:
            raise ValueError(f"slot {slot} is empty or not in 0 … {len(self.slots) - 1}")
        return found

    def join(
        self,
        slot: int,
        params: SamplingParams,
        *,
        key: int,
        prompt: Sequence[int],
        output: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Occupy an empty slot. `output` is what the sequence has said before (after a preemption).

        Raises:
            ParameterError: the parameters name a token outside the vocabulary.
        """
        self._check_free(slot)
        params.check_vocab(self.vocab_size)
        remember = max((len(word) - 1 for word in params.bad_words), default=0)
        needs_history = params.penalised or remember > 0
        history = History(prompt, output, remember) if needs_history else None
        entry = Slot(params, key, tuple(eos_token_ids), len(output), history)
        entry.edits = tuple(name for name, edit in EDITS.items() if edit.wanted(params))
        entry.refinements = tuple(name for name, method in REFINEMENTS.items() if method.wanted(params))
        for name in entry.edits:
            entry.extra.update(EDITS[name].prepare(entry, self.device))
        self._place(slot, entry)

    def leave(self, slot: int) -> None:
        """Empty the slot."""
        self.special -= not self[slot].plain_greedy
        self.slots[slot] = None

    def fork(self, source: int, target: int, *, key: int) -> None:
        """Make the empty `target` a copy of `source` with its own noise."""
        entry = self[source]
        self._check_free(target)
        twin = Slot(entry.params, key, entry.eos_token_ids, entry.num_output, entry.history and entry.history.copy(),
                    entry.edits, entry.refinements, entry.extra)  # fmt: skip
        self._place(target, twin)

    def commit(self, slot: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Accepted tokens, int64 [N] each: they become history."""
        for index, token in zip(slot.tolist(), token_ids.tolist(), strict=True):
            entry = self[index]
            entry.num_output += 1
            if entry.history is not None:
                entry.history.append(token)

    def _place(self, slot: int, entry: Slot) -> None:
        self.slots[slot] = entry
        self.special += not entry.plain_greedy

    def _check_free(self, slot: int) -> None:
        if not 0 <= slot < len(self.slots) or self.slots[slot] is not None:
            raise ValueError(f"slot {slot} is taken or not in 0 … {len(self.slots) - 1}")
