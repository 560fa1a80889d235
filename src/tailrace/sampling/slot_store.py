"""Where the requests of the sampler stand: a list of slots, what each is sampled by, and the backends that follow
them. Knows no backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tailrace.errors import ParameterError
from tailrace.kernels.program import Edit, Program
from tailrace.sampling.request_slot import RequestSlot


class SlotObserver(Protocol):
    """Keeps its own form of what the slots hold, and is told what changes: a backend."""

    def add(self, slot: int) -> None:
        """The slot is taken; a call of `edit` follows for its edits."""
        ...

    def edit(self, slot: int) -> None:
        """Its edits at its next position are others than before."""
        ...

    def advance(self, slot: int) -> None:
        """Its sequence has other tokens than before: counts and states have changed."""
        ...

    def remove(self, slot: int) -> None:
        """The slot is empty."""
        ...


ObserverT = TypeVar("ObserverT", bound=SlotObserver)


class SlotStore:
    """S slots. programs, edits: what the rows of each are sampled by, as plain data (kernels/program.py)."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[RequestSlot | None] = [None] * num_slots
        self.programs: list[Program | None] = [None] * num_slots
        self.edits: list[list[Edit]] = [[] for _ in range(num_slots)]
        self._by_name: dict[str, SlotObserver] = {}
        self._observers: list[SlotObserver] = []

    def observer(self, name: str, make: Callable[[Any], ObserverT]) -> ObserverT:
        """The one follower of this name; made when first asked for, and told everything from then on."""
        found = self._by_name.get(name)
        if found is None:
            found = make(self)
            for slot, entry in enumerate(self.slots):
                if entry is not None:
                    found.add(slot)
                    found.edit(slot)
            self._by_name[name] = found
            self._observers.append(found)
        return found  # type: ignore[return-value]

    def __getitem__(self, slot: int) -> RequestSlot:
        try:
            found = self.slots[slot] if 0 <= slot < len(self.slots) else None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"slot must be an integer, got {slot!r:.100}", "slot") from error
        if found is None:
            raise ParameterError(f"slot {slot} is empty or not in 0 … {len(self.slots) - 1}", "slot")
        return found

    def remove(self, slot: int) -> None:
        """Empty the slot."""
        self[slot]  # raises if there is nobody
        self.slots[slot] = self.programs[slot] = None
        self.edits[slot] = []
        for follower in self._observers:
            follower.remove(slot)

    def move(self, source: int, target: int) -> None:
        """The request of `source` is in the empty `target` from now on, with all that it has: for engines that keep
        their rows dense.

        Raises:
            ParameterError: `source` is empty, or `target` taken.
        """
        self[source]  # raises if there is nobody
        self._check_free("target", target)
        self._exchange(source, target)

    def swap(self, first: int, second: int) -> None:
        """Two requests change places.

        Raises:
            ParameterError: one of them is empty.
        """
        for slot in (first, second):
            self[slot]  # raises if there is nobody
        if first != second:
            self._exchange(first, second)

    def refresh(self, slot: int) -> None:
        """The slot's edits may do something else than before at its next position."""
        self._edit(slot, self[slot].kernel_program)

    def _fill(self, slot: int, entry: RequestSlot, program: Program, edits: list[Edit]) -> None:
        """The empty slot is taken. edits: at its next position."""
        self.slots[slot], self.programs[slot] = entry, program
        for follower in self._observers:
            follower.add(slot)
        self._edit(slot, edits)

    def _edit(self, slot: int, edits: list[Edit]) -> None:
        self.edits[slot] = edits
        for follower in self._observers:
            follower.edit(slot)

    def _exchange(self, first: int, second: int) -> None:
        for follower in self._observers:
            for slot in (first, second):
                if self.slots[slot] is not None:
                    follower.remove(slot)
        slots, programs, edits = self.slots, self.programs, self.edits
        slots[first], slots[second] = slots[second], slots[first]
        programs[first], programs[second] = programs[second], programs[first]
        edits[first], edits[second] = edits[second], edits[first]
        for follower in self._observers:
            for slot in (first, second):
                if self.slots[slot] is not None:
                    follower.add(slot)
                    follower.edit(slot)

    def _check_free(self, name: str, slot: int) -> None:
        try:
            free = 0 <= slot < len(self.slots) and self.slots[slot] is None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ParameterError(f"{name} must be an integer, got {slot!r:.100}", name) from error
        if not free:
            raise ParameterError(f"{name} {slot} is taken or not in 0 … {len(self.slots) - 1}", name)
