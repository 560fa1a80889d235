"""The sampler's one mutable state: per slot, a request's parameters and its sequence's tokens.

Adding, removing, moving or forking a request costs O(its own parameters). A step's rows refer to slots by index.
`Slot.program` and `Slot.next_edits` describe the sampling of a slot's rows as plain data (kernels/program.py).

Backends observe the slots: each gets every change, and keeps the form that its kernels read. This module knows no
backend and no logits. (More than 300 lines: one class with every operation on a request in the sampler.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.program import Edit
from tailrace.kernels.rows import Rows, spread
from tailrace.params import SamplingParams
from tailrace.sampling.history import History, counted_in
from tailrace.sampling.keys import KeySource
from tailrace.sampling.pipeline import add_edit, edits_of, refinements_of
from tailrace.sampling.processors import find_processor
from tailrace.sampling.programs import program_of
from tailrace.sampling.sequence_state import SequenceState, check_sequence_state
from tailrace.sampling.slot import Slot, begin_state
from tailrace.sampling.validation import (
    check_caller_fields,
    check_kind,
    checked_few,
    checked_ids,
    checked_key,
    checked_lists,
    checked_names,
    checked_size,
)

MAX_SLOTS = 2**20  # each takes 2.1 KB


class SlotObserver(Protocol):
    """An object that keeps its own form of the slots and gets every change: a backend."""

    def add(self, slot: int) -> None:
        """The slot is now occupied."""
        ...

    def edit(self, slot: int) -> None:
        """The slot's edits at its next position have changed."""
        ...

    def advance(self, slot: int) -> None:
        """The slot's tokens have changed, and with them counts and states."""
        ...

    def remove(self, slot: int) -> None:
        """The slot is empty."""
        ...


class Slots:
    """S slots over a vocabulary of V tokens. A call that raises has changed nothing.

    - slots: the request of each slot; None if it is empty.
    - observers: in the order in which they were added.

    Args:
        default_keys: keys for requests without a seed; None takes fresh ones from the operating system. Ranks of tensor
            parallelism that add the same requests in the same order agree on all tokens if each has a `KeySource` of
            the same seed.

    Raises:
        ParameterError: (a ValueError) from every method, with the argument's name. Also if a slot is out of range,
            occupied, or empty.
    """

    def __init__(self, num_slots: int, vocab_size: int, *, default_keys: KeySource | None = None) -> None:
        num_slots = checked_size("num_slots", num_slots, 0, MAX_SLOTS)
        self.vocab_size = vocab_size = checked_size("vocab_size", vocab_size, 1)
        if default_keys is not None:
            check_kind("default_keys", default_keys, KeySource)
        self.default_keys = KeySource() if default_keys is None else default_keys
        self.slots: list[Slot | None] = [None] * num_slots
        self.observers: list[SlotObserver] = []

    def add_observer(self, observer: SlotObserver) -> None:
        """Report the slots' contents and all later changes to this observer."""
        for slot, entry in enumerate(self.slots):
            if entry is not None:
                observer.add(slot)
        self.observers.append(observer)

    def __getitem__(self, slot: int) -> Slot:
        try:
            found = self.slots[slot] if 0 <= slot < len(self.slots) else None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"slot must be an integer, got {slot!r:.100}", "slot") from error
        if found is None:
            raise ParameterError(f"slot {slot} is empty or not in 0 … {len(self.slots) - 1}", "slot")
        return found

    def add(
        self,
        slot: int,
        params: SamplingParams,
        *,
        prompt: Sequence[int],
        key: int | None = None,
        output: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
        sequence_state: SequenceState | None = None,
        handled_by_caller: Collection[str] = (),
    ) -> None:
        """Occupy an empty slot. (More than six parameters: a request's, by name, and nearly all may be left out.)

        Args:
            prompt: token ids.
            output: token ids that the sequence had before a preemption.
            key: 64 bits, of the noise. None: the key of the parameters' seed, or a fresh one (sampling/keys.py).
            sequence_state: the sequence's state from before a preemption. The slot writes to it.
            handled_by_caller: fields of CALLER_FIELDS (sampling/validation.py) that the caller acts on. Any other such
                field that is not neutral is refused, because nothing here would act on it.

        Raises:
            ParameterError: the parameters name a token outside the vocabulary, an unknown processor, or a field that
                the sampler does not act on. Or prompt, output or eos_token_ids hold no token ids. Or key is no integer
                of 64 bits.
        """
        self._check_free("slot", slot)
        check_kind("params", params, SamplingParams)
        params.check_vocab(self.vocab_size)
        check_caller_fields(params, key, checked_names("handled_by_caller", handled_by_caller))
        if key is not None:
            checked_key(key)
        prompt, output = (
            checked_ids(name, ids, self.vocab_size) for name, ids in (("prompt", prompt), ("output", output))
        )
        # A tokenizer may name an EOS id beyond the model's vocabulary. No draw returns it.
        eos_token_ids = [id for id in checked_ids("eos_token_ids", eos_token_ids, 2**32) if id < self.vocab_size]
        for name in params.processors:
            find_processor(name)
        check_sequence_state(sequence_state, self.vocab_size)
        key = self.default_keys.key_of(params.seed) if key is None else key  # last: a refused call takes no key
        edits, refinements = edits_of(params), refinements_of(params)
        recalls = any(method.recalls(params) for method in edits) or params.watermark is not None
        history = History(params, prompt, output) if recalls else None
        state, eos = begin_state(params, refinements, len(output), sequence_state), tuple(eos_token_ids)
        program = program_of(params, key, eos, history, stateful=bool(state.state))
        counts = self.vocab_size, len(prompt), len(output)
        self._place_request(slot, Slot(params, key, eos, *counts, history, edits, refinements, state, program))

    def fork(self, source: int, target: int, *, key: int, sequence_state: SequenceState | None = None) -> None:
        """Make the empty `target` a copy of `source` with its own noise. sequence_state: as for `add`."""
        entry, key = self[source], checked_key(key)
        self._check_free("target", target)
        check_sequence_state(sequence_state, self.vocab_size)
        sequence_state = SequenceState() if sequence_state is None else sequence_state
        own = bool(sequence_state.banned) or sequence_state.mask is not None
        sequence_state.copy_from(entry.sequence_state)
        history = entry.history and entry.history.copy()
        program = program_of(entry.params, key, entry.eos_token_ids, history, stateful=bool(sequence_state.state))
        twin = replace(
            entry, key=key, program=program, history=history, sequence_state=sequence_state, updates=[*entry.updates]
        )
        edits = [counted_in(history, edit, entry.history) for edit in entry.next_edits]
        self._place_request(target, twin, None if own else edits)

    def adopt(self, slot: int, output: Sequence[int]) -> None:
        """Set the slot's output, for engines that write token ids themselves. The common prefix stays. The rest is
        removed as by `rewind`, and the new tokens are added as by `commit`.

        Args:
            output: all token ids of the sequence after its prompt.

        Raises:
            ParameterError: these are no token ids, or tokens whose state can't be restored would have to be removed.
        """
        entry, wanted = self[slot], checked_ids("output", output, self.vocab_size)
        if entry.history is None:  # no method reads the tokens themselves
            kept = min(entry.num_output, len(wanted))
        else:
            own = entry.history.tokens[entry.num_prompt :]
            kept = next(
                (i for i, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b), min(len(own), len(wanted))
            )
        if kept < entry.num_output:
            self.rewind(slot, entry.num_output - kept)
        self.commit([slot], [wanted[kept:]])

    def commit(self, slots: Iterable[int], tokens: Iterable[Sequence[int]]) -> None:
        """Append the accepted tokens of each slot, as `Sampled.tokens` has them. A step's tokens may come in several
        calls, and a slot several times: its lists follow one another.

        Raises:
            ParameterError: the number of lists differs from the slots', or a list holds no token ids. Then nothing was
                committed.
        """
        pairs = checked_lists(slots, tokens)
        checked = [(index, self[index], checked_few("tokens", ids, self.vocab_size)) for index, ids in pairs]
        for index, entry, accepted in checked:
            self._append_tokens(index, entry, accepted)

    def commit_drawn(self, slot: int, token: int) -> None:
        """Append one token that the sampler has drawn for the slot, as `commit` does. Nothing is checked."""
        entry = self.slots[slot]
        assert entry is not None
        if entry.history is None and not entry.updates and not entry.turns and not entry.sequence_state.forced:
            entry.num_output += 1
            return
        self._append_tokens(slot, entry, [token])

    def reads_output(self, slot: int) -> bool:
        """Return whether the slot's draws depend on its output tokens or on their number. Then `commit` or `adopt` must
        add them before the next draw. Other slots need no commits if each row's position is given."""
        entry = self[slot]
        return entry.history is not None or bool(entry.state) or entry.moves

    def rewind(self, slot: int, count: int) -> None:
        """Remove the last `count` output tokens.

        Raises:
            ParameterError: the output is shorter, or the slot has a state that can't be restored.
        """
        entry = self[slot]
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= entry.num_output:
            raise ParameterError(f"count must be an integer in 0 … {entry.num_output}, got {count!r:.100}", "count")
        if entry.state:
            raise ParameterError(f"slot {slot} has mirostat or adaptive-p, whose state can't be taken back", "slot")
        entry.updates.clear()
        for _ in range(count):
            entry.pop()
        for place in [place for place in entry.banned if place > entry.num_output]:
            del entry.banned[place]
        self.refresh_edits(slot)

    def ban(self, slot: int, token: int) -> None:
        """Ban `token` at the slot's next position.

        Raises:
            ParameterError: it is no token id.
        """
        entry = self[slot]
        [token] = checked_few("token", [token], self.vocab_size)
        add_edit(entry, "banned_at")
        entry.banned.setdefault(entry.num_output, set()).add(token)
        self.refresh_edits(slot)

    def exclude(self, slot: int, token: int) -> None:
        """Ban `token` at all later positions.

        Raises:
            ParameterError: it is no token id.
        """
        entry = self[slot]
        [token] = checked_few("token", [token], self.vocab_size)
        add_edit(entry, "allowed_token_ids")
        words = np.full(-(-self.vocab_size // 32), 0xFFFFFFFF, dtype=np.uint32)
        words[token // 32] ^= np.uint32(1 << token % 32)
        sequence_state = entry.sequence_state
        sequence_state.mask = words if sequence_state.mask is None else words & sequence_state.mask
        self.refresh_edits(slot)

    def force(self, slot: int, tokens: Sequence[int]) -> None:
        """Force the slot's next tokens.

        Raises:
            ParameterError: an id lies outside the vocabulary.
        """
        entry = self[slot]
        entry.sequence_state.force(entry.num_output, checked_few("tokens", tokens, self.vocab_size))
        self.refresh_edits(slot)

    def positions(self, rows: Rows) -> torch.Tensor:
        """Return each row's position, int64 [R], from its slot's counts: prompt, output, and the drafts before it.

        Raises:
            ParameterError: a slot is empty, or occurs twice. A slot has one count, so both would have the same noise.
        """
        check_kind("rows", rows, Rows)
        starts = rows.start.tolist()
        try:
            owners = rows.slot[rows.start[:-1]].tolist()
        except IndexError as error:
            raise ParameterError(f"start must hold places among {rows.num_rows} rows: {error}", "start") from error
        if len(set(owners)) < len(owners):
            twice = next(owner for owner in owners if owners.count(owner) > 1)
            raise ParameterError(
                f"slot {twice} is there twice: give the position of each, or the same noise comes twice", "slot"
            )
        entries = [self[owner] for owner in owners]
        first = [entry.num_prompt + entry.num_output for entry in entries]
        return spread(first, [end - begin for begin, end in pairwise(starts)])

    def advance(self, slot: int, edits: bool) -> None:
        """Report to the backends that the slot's tokens have changed. edits: its edits may have changed too."""
        entry = self[slot]
        if entry.state or (entry.history is not None and not edits):
            for observer in self.observers:
                observer.advance(slot)
        if edits:
            self.refresh_edits(slot)

    def refresh_edits(self, slot: int) -> None:
        """Compute the slot's edits at its next position again."""
        entry = self[slot]
        entry.next_edits = entry.kernel_edits()
        for observer in self.observers:
            observer.edit(slot)

    def remove(self, slot: int) -> None:
        """Empty the slot."""
        self[slot]  # raises if the slot is empty
        self.slots[slot] = None
        for observer in self.observers:
            observer.remove(slot)

    def move(self, source: int, target: int) -> None:
        """Move the request of `source` with all its state to the empty `target`, for engines that keep their rows
        dense.

        Raises:
            ParameterError: `source` is empty, or `target` occupied.
        """
        self[source]  # raises if the slot is empty
        self._check_free("target", target)
        self._exchange_slots(source, target)

    def swap(self, first: int, second: int) -> None:
        """Exchange two requests' slots.

        Raises:
            ParameterError: one of the slots is empty.
        """
        for slot in (first, second):
            self[slot]  # raises if the slot is empty
        if first != second:
            self._exchange_slots(first, second)

    def _append_tokens(self, slot: int, entry: Slot, tokens: Sequence[int]) -> None:
        """Append checked tokens to a slot's entry, and report the change."""
        entry.extend(tokens)
        if moves := entry.moves:
            entry.sequence_state.forget(entry.num_output)
        self.advance(slot, moves)

    def _place_request(self, slot: int, entry: Slot, next_edits: list[Edit] | None = None) -> None:
        """Fill the empty slot. next_edits: the request's edits, if they are known."""
        if entry.banned:
            add_edit(entry, "banned_at")
        if entry.sequence_state.mask is not None:
            add_edit(entry, "allowed_token_ids")
        entry.next_edits = entry.kernel_edits() if next_edits is None else next_edits
        self.slots[slot] = entry
        for observer in self.observers:
            observer.add(slot)

    def _exchange_slots(self, first: int, second: int) -> None:
        slots, moved = self.slots, [place for place in (first, second) if self.slots[place] is not None]
        for observer in self.observers:
            for place in moved:
                observer.remove(place)
        slots[first], slots[second] = slots[second], slots[first]
        for observer in self.observers:
            for place in (first, second):
                if slots[place] is not None:
                    observer.add(place)

    def _check_free(self, name: str, slot: int) -> None:
        try:
            free = 0 <= slot < len(self.slots) and self.slots[slot] is None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"{name} must be an integer, got {slot!r:.100}", name) from error
        if not free:
            raise ParameterError(f"{name} {slot} is taken or not in 0 … {len(self.slots) - 1}", name)
