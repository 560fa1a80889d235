"""The sampler's one mutable state: per slot, what its request asks and what its sequence has said.

A request joins, leaves and forks in O(its own parameters); rows of a step point into the slots by index. On the CPU each slot also has its
program, the form that the kernels read (kernels/cpu/program.py): written when a request joins, and where an edit moves, after every
token. `compiled` and `edits` have them as they are made, for backends that write them elsewhere. Knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tailrace.kernels.cpu.program import MAX_EDITS, Programs
from tailrace.kernels.program import Dense, Edit, Program, ascending
from tailrace.params import SamplingParams
from tailrace.sampling.history import History
from tailrace.sampling.pipeline import EDITS, REFINEMENTS, edits_of, refinements_of
from tailrace.sampling.processors import find
from tailrace.sampling.survivors import Survivors

T = TypeVar("T")
Lesson = tuple[int, float | None]  # a token, and the probability that is learnt from


@dataclass(frozen=True, slots=True)
class Carried:
    """What a sequence takes along from slot to slot, besides its tokens; whoever holds it sees what the slot writes.

    state: what the methods have learnt. banned: output position → ids that may not be drawn there. forced: output position → the id
    that must be.
    """

    state: dict[str, float] = field(default_factory=dict)
    banned: dict[int, set[int]] = field(default_factory=dict)
    forced: dict[int, int] = field(default_factory=dict)

    def force(self, position: int, tokens: Sequence[int]) -> None:
        """These are the output from this position on."""
        self.forced.update(enumerate(tokens, start=position))

    def forget(self, position: int) -> None:
        """What was forced before this position has come."""
        for place in [place for place in self.forced if place < position]:
            del self.forced[place]

    def copy_from(self, other: Carried) -> None:
        """Begin where another sequence stands."""
        self.state.update(other.state)
        self.forced.update(other.forced)
        self.banned.update({place: set(ids) for place, ids in other.banned.items()})


@dataclass(slots=True)
class Slot:
    """One occupied slot.

    edits, refinements: the methods it wants, in order. lessons: of the tokens drawn and not yet committed, in order: each with the
    probability that is learnt from if it stands; None: nothing is. basis: those whose probabilities are learnt from, at the row looked
    at last. derived: made once from the parameters.
    """

    params: SamplingParams
    key: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    num_output: int
    history: History | None
    edits: tuple[str, ...]
    refinements: tuple[str, ...]
    carried: Carried
    derived: dict[str, Any] = field(default_factory=dict)
    lessons: list[Lesson] = field(default_factory=list)
    basis: Survivors | None = None

    def once(self, name: str, make: Callable[[], T]) -> T:
        """`make()`, the first time; afterwards what it made."""
        if name not in self.derived:
            self.derived[name] = make()
        return self.derived[name]

    @property
    def state(self) -> dict[str, float]:
        """What its refinements carry from token to token."""
        return self.carried.state

    @property
    def banned(self) -> dict[int, set[int]]:
        """Output position → ids that may not be drawn there."""
        return self.carried.banned

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
        return bool(self.carried.forced) or any(EDITS[name].moves(self.params) for name in self.edits)

    @property
    def rare(self) -> bool:
        """The kernels don't have all that it asks for: its rows go the reference's way, alone."""
        return bool(self.params.processors) or any(REFINEMENTS[name].stage is None for name in self.refinements)

    @property
    def unrolls(self) -> bool:
        """More than the counts of its history changes with each draft: the kernels want a program per row (sampling/unroll.py)."""
        return not self.rare and (self.moves or self.params.penalty_last_n >= 0)

    @property
    def reported(self) -> bool:
        """Logprobs or entropies are asked for."""
        return self.params.logprobs is not None or self.params.report_entropy

    @property
    def forced(self) -> int | None:
        """The token that the next position must have."""
        return self.carried.forced.get(self.num_output)

    def append(self, token: int) -> None:
        """One more output token."""
        self.num_output += 1
        if self.history is not None:
            self.history.append(token)
        if self.lessons:
            drawn, p = self.lessons.pop(0)
            if drawn != token:  # it came from elsewhere, and what was drawn after it is not what follows
                self.lessons.clear()
            elif p is not None:
                for name in self.refinements:
                    if (learn := REFINEMENTS[name].learn) is not None:
                        learn(self, p)

    def lesson(self, token: int) -> Lesson:
        """What the slot's methods learn if this token stands; nothing if it was forced."""
        if self.basis is None or self.forced is not None:
            return token, None
        at = int(torch.searchsorted(self.basis.ids, token))
        kept = at < self.basis.ids.numel() and int(self.basis.ids[at]) == token
        return token, float(self.basis.probabilities()[at]) if kept else None

    def pop(self) -> None:
        """Take the last output token back. What the state has learnt from it is the caller's to restore."""
        self.num_output -= 1
        if self.history is not None:
            self.history.pop()


class Slots:
    """S slots over a vocabulary of V tokens.

    Raises:
        ValueError: from `join`, `leave`, `fork` and `slots[i]` for a slot out of range, taken, or empty.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.slots: list[Slot | None] = [None] * num_slots
        self.compiled: list[Program | None] = [None] * num_slots
        self.edits: list[list[Edit]] = [[] for _ in range(num_slots)]
        self.programs = Programs(num_slots)

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
        carried: Carried | None = None,
    ) -> None:
        """Occupy an empty slot.

        Args:
            output: what the sequence has said before (after a preemption). carried: what it kept from then; written to from now on.

        Raises:
            ParameterError: the parameters name a token outside the vocabulary, or a processor that is not there.
        """
        self._check_free(slot)
        params.check_vocab(self.vocab_size)
        for name, ids in (("prompt", prompt), ("output", output)):
            if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                raise ValueError(f"{name} must hold token ids in 0 … {self.vocab_size - 1}")
        for name in params.processors:
            find(name)
        edits, refinements = edits_of(params), refinements_of(params)
        recalls = any(EDITS[name].recalls(params) for name in edits) or params.watermark is not None
        carried = Carried() if carried is None else carried
        for position in range(len(output), len(params.forced_token_ids)):
            carried.forced.setdefault(position, params.forced_token_ids[position])
        for name in refinements:
            if (begin := REFINEMENTS[name].begin) is not None:
                carried.state.update(begin(params) | carried.state)
        history = History(params, prompt, output) if recalls else None
        entry = Slot(
            params,
            key,
            tuple(eos_token_ids),
            self.vocab_size,
            len(output),
            history,
            edits,
            refinements,
            carried,
        )
        self._place(slot, entry)

    def leave(self, slot: int) -> None:
        """Empty the slot."""
        self[slot]  # raises if there is nobody
        self.slots[slot] = self.compiled[slot] = None
        self.edits[slot] = []
        self.programs.clear(slot)

    def fork(self, source: int, target: int, *, key: int, carried: Carried | None = None) -> None:
        """Make the empty `target` a copy of `source` with its own noise. carried: as for `join`."""
        entry = self[source]
        self._check_free(target)
        carried = Carried() if carried is None else carried
        carried.copy_from(entry.carried)
        twin = Slot(
            entry.params, key, entry.eos_token_ids, entry.vocab_size, entry.num_output, entry.history and entry.history.copy(),
            entry.edits, entry.refinements, carried, entry.derived, list(entry.lessons),
        )  # fmt: skip
        self._place(target, twin)

    def commit(self, slots: Iterable[int], tokens: Iterable[Sequence[int]]) -> None:
        """Accepted tokens of each slot: they become history. Those of one step may come in several calls."""
        for index, accepted in zip(slots, tokens, strict=True):
            entry = self[index]
            for token in accepted:
                entry.append(token)
            if entry.moves:
                entry.carried.forget(entry.num_output)
                self.refresh(index)

    def rewind(self, slot: int, count: int) -> None:
        """Take back the last `count` output tokens.

        Raises:
            ValueError: there are not so many, or the slot carries state that can't be taken back.
        """
        entry = self[slot]
        if not 0 <= count <= entry.num_output:
            raise ValueError(f"count must be in 0 … {entry.num_output}, got {count}")
        if entry.state:
            raise ValueError("mirostat and adaptive-p carry state that can't be taken back")
        entry.lessons.clear()
        for _ in range(count):
            entry.pop()
        for place in [place for place in entry.banned if place > entry.num_output]:
            del entry.banned[place]
        self.refresh(slot)

    def ban(self, slot: int, token: int) -> None:
        """`token` may not be drawn at the slot's next position."""
        entry = self[slot]
        entry.banned.setdefault(entry.num_output, set()).add(token)
        self.refresh(slot)

    def force(self, slot: int, tokens: Sequence[int]) -> None:
        """These are the slot's next tokens, whatever would be drawn.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        entry = self[slot]
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise ValueError(f"tokens must be ids in 0 … {self.vocab_size - 1}")
        entry.carried.force(entry.num_output, tokens)
        self.refresh(slot)

    def refresh(self, slot: int) -> None:
        """Write what the slot's edits do at its next position."""
        entry = self[slot]
        self.edits[slot] = entry.kernel_program
        self.programs.write_edits(slot, self.edits[slot], entry.forced)

    def _place(self, slot: int, entry: Slot) -> None:
        params, history = entry.params, entry.history
        program = Program(
            key=entry.key,
            stages=[stage(params) for name in entry.refinements if (stage := REFINEMENTS[name].stage) is not None],
            exempt=ascending(entry.eos_token_ids),
            logprobs=params.logprobs,
            greedy=params.greedy,
            processed=params.logprobs_mode == "processed",
            entropy=params.report_entropy,
            rare=entry.rare,
            counts=history.counts if history else None,
            weights=history.weights(history.num_prompt) if history else (0, 0),
        )
        self.slots[slot], self.compiled[slot] = entry, program
        self.programs.write(slot, program)
        self.refresh(slot)

    def _check_free(self, slot: int) -> None:
        if not 0 <= slot < len(self.slots) or self.slots[slot] is not None:
            raise ValueError(f"slot {slot} is taken or not in 0 … {len(self.slots) - 1}")
