"""The sampler's one mutable state: per slot, what its request asks and what its sequence has said.

A request joins, leaves and forks in O(its own parameters); rows of a step point into the slots by index. On the CPU each slot also has its
program, the form that the kernels read (kernels/cpu/program.py): written when a request joins, and where an edit moves, after every
token. `compiled` and `edits` have them as they are made, for backends that write them elsewhere. Knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch

from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import Programs
from tailrace.kernels.program import Edit, Program, ascending
from tailrace.kernels.rows import Rows, spread
from tailrace.params import SamplingParams
from tailrace.sampling.history import History, counted_in
from tailrace.sampling.keys import request_key
from tailrace.sampling.pipeline import EDITS, REFINEMENTS, edits_of, refinements_of, stages_of
from tailrace.sampling.processors import find
from tailrace.sampling.sequence_state import SequenceState, check_sequence_state
from tailrace.sampling.slot import Slot
from tailrace.sampling.validation import (
    check_elsewhere,
    check_kind,
    checked_few,
    checked_ids,
    checked_key,
    checked_names,
    checked_size,
)

MAX_SLOTS = 2**20  # each takes 1.7 KB


class Slots:
    """S slots over a vocabulary of V tokens. Whatever is refused is refused before anything has changed.

    Raises:
        ParameterError: (a ValueError) from all, with the argument's name: also for a slot out of range, taken, or empty.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        num_slots = checked_size("num_slots", num_slots, 0, MAX_SLOTS)
        self.vocab_size = vocab_size = checked_size("vocab_size", vocab_size, 1)
        self.slots: list[Slot | None] = [None] * num_slots
        self.compiled: list[Program | None] = [None] * num_slots
        self.edits: list[list[Edit]] = [[] for _ in range(num_slots)]
        self.programs = Programs(num_slots)
        # another number each time that what a slot draws from has changed, but for its position: for those who keep a copy of it
        self.versions = [0] * num_slots
        self._version = 0

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
        handled: Collection[str] = (),
    ) -> None:
        """Occupy an empty slot.

        Args:
            key: 64 bits, of the noise; None: that of the parameters' seed, or a fresh one (sampling/keys.py). handled: fields of ELSEWHERE
                that the caller sees to; any other that asks for something is refused, because nothing here would do it.
            output: what the sequence has said before (after a preemption). sequence_state: what it kept from then; written to from now on.

        Raises:
            ParameterError: the parameters name a token outside the vocabulary, a processor that is not there, or what is done elsewhere;
                prompt, output or eos_token_ids hold no token ids; key is not of 64 bits.
        """
        self._check_free("slot", slot)
        check_kind("params", params, SamplingParams)
        params.check_vocab(self.vocab_size)
        check_elsewhere(params, key, checked_names("handled", handled))
        key = request_key(params.seed, 0) if key is None else checked_key(key)
        prompt, output = (
            checked_ids(name, ids, self.vocab_size) for name, ids in (("prompt", prompt), ("output", output))
        )
        # a tokenizer may name an end beyond the model's vocabulary: it never comes
        eos_token_ids = [id for id in checked_ids("eos_token_ids", eos_token_ids, 2**32) if id < self.vocab_size]
        for name in params.processors:
            find(name)
        check_sequence_state(sequence_state, self.vocab_size)
        edits, refinements = edits_of(params), refinements_of(params)
        recalls = any(EDITS[name].recalls(params) for name in edits) or params.watermark is not None
        sequence_state = SequenceState() if sequence_state is None else sequence_state
        for position in range(len(output), len(params.forced_token_ids)):
            sequence_state.forced.setdefault(position, params.forced_token_ids[position])
        for name in refinements:
            if (begin := REFINEMENTS[name].begin) is not None:
                sequence_state.state.update(begin(params) | sequence_state.state)
        history = History(params, prompt, output) if recalls else None
        entry = Slot(
            params,
            key,
            tuple(eos_token_ids),
            self.vocab_size,
            len(prompt),
            len(output),
            history,
            edits,
            refinements,
            sequence_state,
        )
        self._place(slot, entry)

    def remove(self, slot: int) -> None:
        """Empty the slot."""
        self[slot]  # raises if there is nobody
        self.slots[slot] = self.compiled[slot] = None
        self.edits[slot] = []
        self.programs.clear(slot)
        self.changed(slot)

    def fork(self, source: int, target: int, *, key: int, sequence_state: SequenceState | None = None) -> None:
        """Make the empty `target` a copy of `source` with its own noise. sequence_state: as for `add`."""
        entry, key = self[source], checked_key(key)
        self._check_free("target", target)
        check_sequence_state(sequence_state, self.vocab_size)
        sequence_state = SequenceState() if sequence_state is None else sequence_state
        own = bool(sequence_state.banned) or sequence_state.mask is not None
        sequence_state.copy_from(entry.sequence_state)
        twin = Slot(
            entry.params,
            key,
            entry.eos_token_ids,
            entry.vocab_size,
            entry.num_prompt,
            entry.num_output,
            entry.history and entry.history.copy(),
            entry.edits,
            entry.refinements,
            sequence_state,
            entry.derived,
            list(entry.lessons),
        )
        edits = [counted_in(twin.history, edit, entry.history) for edit in self.edits[source]]
        self._place(target, twin, None if own else edits)

    def commit(self, slots: Iterable[int], tokens: Iterable[Sequence[int]]) -> None:
        """Accepted tokens of each slot, as `Sampled.tokens` has them: they become history. Those of one step may come in several calls, and
        a slot several times: its lists follow one another.

        Raises:
            ParameterError: there are not as many lists as slots, or one holds no token ids; then nothing was committed.
        """
        try:
            where, given = list(slots), list(tokens)
        except TypeError as error:
            name, odd = ("tokens", tokens) if isinstance(slots, Iterable) else ("slots", slots)
            raise ParameterError(f"{name} must be a list, got {odd!r:.100}", name) from error
        if len(where) != len(given):
            raise ParameterError(f"tokens must hold a list for each of {len(where)} slots, got {len(given)}", "tokens")
        checked: list[tuple[int, Slot, list[int]]] = []
        for index, ids in zip(where, given, strict=True):
            checked.append((index, self[index], checked_few("tokens", ids, self.vocab_size)))
        for index, entry, accepted in checked:
            entry.extend(accepted)
            if moves := entry.moves:
                entry.sequence_state.forget(entry.num_output)
            self.follow(index, moves)

    def rewind(self, slot: int, count: int) -> None:
        """Take back the last `count` output tokens.

        Raises:
            ParameterError: there are not so many, or the slot carries state that can't be taken back.
        """
        entry = self[slot]
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= entry.num_output:
            raise ParameterError(f"count must be an integer in 0 … {entry.num_output}, got {count!r:.100}", "count")
        if entry.state:
            raise ParameterError(f"slot {slot} has mirostat or adaptive-p, whose state can't be taken back", "slot")
        entry.lessons.clear()
        for _ in range(count):
            entry.pop()
        for place in [place for place in entry.banned if place > entry.num_output]:
            del entry.banned[place]
        self.refresh(slot)

    def ban(self, slot: int, token: int) -> None:
        """`token` may not be drawn at the slot's next position.

        Raises:
            ParameterError: it is no token id.
        """
        entry = self[slot]
        [token] = checked_few("token", [token], self.vocab_size)
        entry.begin_edit("banned_at")
        entry.banned.setdefault(entry.num_output, set()).add(token)
        self.refresh(slot)

    def exclude(self, slot: int, token: int) -> None:
        """`token` may be drawn nowhere from now on.

        Raises:
            ParameterError: it is no token id.
        """
        entry = self[slot]
        [token] = checked_few("token", [token], self.vocab_size)
        entry.begin_edit("allowed_token_ids")
        words = np.full(-(-self.vocab_size // 32), 0xFFFFFFFF, dtype=np.uint32)
        words[token // 32] ^= np.uint32(1 << token % 32)
        sequence_state = entry.sequence_state
        sequence_state.mask = words if sequence_state.mask is None else words & sequence_state.mask
        self.refresh(slot)

    def force(self, slot: int, tokens: Sequence[int]) -> None:
        """These are the slot's next tokens, whatever would be drawn.

        Raises:
            ParameterError: an id lies outside the vocabulary.
        """
        entry = self[slot]
        entry.sequence_state.force(entry.num_output, checked_few("tokens", tokens, self.vocab_size))
        self.refresh(slot)

    def positions(self, rows: Rows) -> torch.Tensor:
        """int64 [R]: of each row's token, by what its slot has counted: prompt, output, and the drafts before it.

        Raises:
            ParameterError: a slot is empty, or there twice: it has one count, and both would have the same noise.
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

    def follow(self, slot: int, moves: bool) -> None:
        """The slot's sequence has other tokens than before: write what that changes. moves: its edits among it."""
        entry = self[slot]
        if entry.state:
            self.programs.write_state(slot, entry.state)
        if moves:
            self.refresh(slot)
        elif entry.history is not None:
            self.changed(slot)

    def refresh(self, slot: int) -> None:
        """Write what the slot's edits do at its next position."""
        self._edit(slot, self[slot].kernel_program)

    def _edit(self, slot: int, edits: list[Edit]) -> None:
        self.edits[slot] = edits
        self.programs.write_edits(slot, edits, self[slot].forced)
        self.changed(slot)

    def changed(self, slot: int) -> None:
        """What the slot draws from is another than before: whoever keeps a copy of it has to look again."""
        self._version += 1
        self.versions[slot] = self._version

    def _place(self, slot: int, entry: Slot, edits: list[Edit] | None = None) -> None:
        """edits: at its next position, where they are known."""
        params, history = entry.params, entry.history
        if entry.banned:
            entry.begin_edit("banned_at")
        if entry.sequence_state.mask is not None:
            entry.begin_edit("allowed_token_ids")
        program = Program(
            key=entry.key,
            stages=stages_of(params),
            exempt=ascending(entry.eos_token_ids),
            logprobs=params.logprobs,
            greedy=params.greedy,
            processed=params.logprobs_mode == "processed",
            entropy=params.report_entropy,
            rare=entry.rare,
            learning=bool(entry.state),
            counts=history.counts if history else None,
            weights=history.weights(history.num_prompt) if history else (0, 0),
            said=history.said if history else None,
        )
        self.slots[slot], self.compiled[slot] = entry, program
        self.programs.write(slot, program)
        self.programs.write_state(slot, entry.state)
        self._edit(slot, entry.kernel_program if edits is None else edits)

    def _check_free(self, name: str, slot: int) -> None:
        try:
            free = 0 <= slot < len(self.slots) and self.slots[slot] is None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"{name} must be an integer, got {slot!r:.100}", name) from error
        if not free:
            raise ParameterError(f"{name} {slot} is taken or not in 0 … {len(self.slots) - 1}", name)
