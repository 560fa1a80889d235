"""Stop strings: an Aho–Corasick automaton (Aho & Corasick 1975) over the UTF-8 bytes of the text.

The match that ends first wins; of several that end there, the one that starts first (the longest). That is what a search of the
whole text for the earliest end finds. Held back is exactly the longest suffix that is a proper prefix of some stop: what
may still become one, and nothing else. Stops and text are whole characters, so cuts fall between characters.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import NamedTuple


class Match(NamedTuple):
    """The stop string that was found."""

    stop: str


class Automaton:
    """Compiled for a set of stops; immutable, shared by all streams that have the same."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.step: list[dict[int, int]] = [{}]
        self.found: list[str | None] = [None]  # the longest stop that ends in this state
        self.hold: list[int] = [0]  # bytes of the longest suffix that may still become a stop
        depth = [0]
        for stop in stops:
            state = 0
            for byte in stop.encode():
                if byte not in self.step[state]:
                    self.step[state][byte] = len(self.step)
                    self.step.append({})
                    self.found.append(None)
                    depth.append(depth[state] + 1)
                state = self.step[state][byte]
            self.found[state] = stop
        self.fail = [0] * len(self.step)
        self.hold = [0] * len(self.step)
        queue = deque(self.step[0].values())
        while queue:  # breadth first: a state's fail link is shallower, so it is complete
            state = queue.popleft()
            fail = self.fail[state]
            self.found[state] = self.found[state] or self.found[fail]
            self.hold[state] = depth[state] if self.step[state] else self.hold[fail]
            for byte, child in self.step[state].items():
                self.fail[child] = self.advance(fail, byte)
                queue.append(child)
        firsts = bytes(sorted(self.step[0]))
        self.may_start = re.compile(b"[" + re.escape(firsts) + b"]").search if firsts else None
        self._quiet: dict[str, bool] = {}  # texts of tokens come again and again

    def quiet(self, text: str) -> bool:
        """No stop can begin in it."""
        known = self._quiet.get(text)
        if known is None:
            if len(self._quiet) >= MAX_QUIET:
                self._quiet.clear()
            known = self._quiet[text] = self.may_start is None or not self.may_start(text.encode())
        return known

    def advance(self, state: int, byte: int) -> int:
        """The next state."""
        while state and byte not in self.step[state]:
            state = self.fail[state]
        return self.step[state].get(byte, 0)


MAX_QUIET = 100_000
compiled = lru_cache(maxsize=64)(Automaton)  # of at most 128 · 1,024 characters each


class StopMatcher:
    """One stream's search. feed and flush give the text that is safe to show."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._automaton = compiled(stops) if stops else None
        self._state = 0
        self._held = b""

    def passes(self, text: str) -> bool:
        """Nothing is held, and the text can go out as it is: `feed` would say the same and change nothing."""
        return self._automaton is None or (self._state == 0 and self._automaton.quiet(text))

    def feed(self, text: str, armed: bool = True) -> tuple[str, Match | None]:
        """More text → (what can go out, the match if one ended in it: what went out then ends where it begins, and nothing after
        it is looked at). While not `armed` matches do not count, but their beginnings do: a stop that begins in unarmed
        text and ends in armed text is found."""
        automaton = self._automaton
        if automaton is None:
            return text, None
        new = text.encode()
        if self._state == 0 and automaton.may_start is not None and not automaton.may_start(new):
            return text, None
        data = self._held + new
        state = self._state
        for at, byte in enumerate(new, start=len(self._held) + 1):
            state = automaton.advance(state, byte)
            stop = automaton.found[state]
            if stop is not None and armed:
                self._state, self._held = 0, b""
                return data[: at - len(stop.encode())].decode(), Match(stop)
        self._state = state
        cut = len(data) - automaton.hold[state]
        self._held = data[cut:]
        return data[:cut].decode(), None

    def flush(self) -> str:
        """The end came otherwise: what was held is text."""
        held, self._held, self._state = self._held, b"", 0
        return held.decode()
