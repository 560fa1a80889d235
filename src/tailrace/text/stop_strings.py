"""The search for stop strings and patterns in an output's text: an Aho–Corasick automaton (Aho & Corasick 1975) over
UTF-8.

The match that ends first wins. Of several that end at the same place, the one that starts first (the longest) wins. A
search of the whole text for the earliest end gives the same. The search holds back exactly the longest suffix that is a
proper prefix of some stop. Stops and text are whole characters, so cuts fall between characters.

With patterns, or with spans that are not searched, all work is done character by character.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.request.options import MarkedSpan
from tailrace.text.stop_regex import RegexSearch, compile_request_patterns


class Match(NamedTuple):
    """A match: the stop string or pattern, and the text that matched."""

    stop: str
    text: str


class StopSearch(Protocol):
    """The search in one stream. feed and flush return text that is safe to send."""

    def passes(self, text: str) -> bool:
        """Return whether nothing is held and no stop can begin in the text. Then `feed` would return the text unchanged
        and change no state."""
        ...

    def feed(self, text: str, armed: bool = True) -> tuple[str, Match | None]:
        """Add text. Return the text that can be sent, and the match if one ended in it. The returned text then ends at
        the beginning of the match, and the text after the match is not read.

        While not `armed`, matches do not count but their beginnings do: a stop that begins in unarmed text and ends in
        armed text is found.
        """
        ...

    def flush(self) -> str:
        """Return the held text, because the stream ended for another reason."""
        ...


def stop_search(params: SamplingParams) -> StopSearch:
    """Return the search for a request's stops.

    Raises:
        ParameterError: a pattern can't be served.
    """
    if not (params.stop or params.stop_regex):
        return StringSearch(())
    if not (params.stop_regex or params.stop_outside):
        return StringSearch(params.stop)
    return PatternSearch(params)


class AhoCorasick:
    """The automaton of a set of stops. Immutable; streams with the same stops share it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.step: list[dict[int, int]] = [{}]
        self.found: list[str | None] = [None]  # per state, the longest stop that ends there
        depth, characters = [0], [0]
        for stop in stops:
            state = 0
            for byte in stop.encode():
                if byte not in self.step[state]:
                    self.step[state][byte] = len(self.step)
                    self.step.append({})
                    self.found.append(None)
                    depth.append(depth[state] + 1)
                    characters.append(characters[state] + (byte & 0xC0 != 0x80))
                state = self.step[state][byte]
            self.found[state] = stop
        self.fail = [0] * len(self.step)
        self.hold = [0] * len(self.step)  # bytes of the longest suffix that may still become a stop
        self.held = [0] * len(self.step)  # the same in characters
        queue = deque(self.step[0].values())
        while queue:  # breadth first: a state's fail link is shallower, so it is complete
            state = queue.popleft()
            fail = self.fail[state]
            self.found[state] = self.found[state] or self.found[fail]
            self.hold[state] = depth[state] if self.step[state] else self.hold[fail]
            self.held[state] = characters[state] if self.step[state] else self.held[fail]
            for byte, child in self.step[state].items():
                self.fail[child] = self.advance(fail, byte)
                queue.append(child)
        firsts = bytes(sorted(self.step[0]))
        self.may_start = re.compile(b"[" + re.escape(firsts) + b"]").search if firsts else None
        self._quiet: dict[str, bool] = {}  # cached, since the texts of tokens repeat

    def is_quiet(self, text: str) -> bool:
        """Return whether no stop can begin in the text."""
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


MAX_QUIET = 10_000
compile_strings = lru_cache(maxsize=16)(AhoCorasick)  # each has at most 8,192 bytes of stops, so all need 3 MB


class StringSearch:
    """A search for stop strings only, in the whole text."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        if not isinstance(stops, tuple) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ParameterError(f"stops must be a tuple of texts that are not empty, got {stops!r:.100}", "stops")
        self._automaton = compile_strings(stops) if stops else None
        self._state = 0
        self._held = b""

    def passes(self, text: str) -> bool:
        return self._automaton is None or (self._state == 0 and self._automaton.is_quiet(text))

    def feed(self, text: str, armed: bool = True) -> tuple[str, Match | None]:
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
                return data[: at - len(stop.encode())].decode(), Match(stop, stop)
        self._state = state
        cut = len(data) - automaton.hold[state]
        self._held = data[cut:]
        return data[:cut].decode(), None

    def flush(self) -> str:
        held, self._held, self._state = self._held, b"", 0
        return held.decode()


class PatternSearch:
    """A search for stop strings and regular expressions, outside of marked spans. Of two matches with the same end the
    longer one counts."""

    def __init__(self, params: SamplingParams) -> None:
        self._strings = compile_strings(params.stop)
        self._state = 0
        self._search = RegexSearch(compile_request_patterns("stop_regex", params.stop_regex, params.n))
        self._tracker = SpanTracker(params.stop_outside)
        self._held = ""

    def passes(self, text: str) -> bool:
        return False

    def feed(self, text: str, armed: bool = True) -> tuple[str, Match | None]:
        data = self._held + text
        for at, char in enumerate(text, start=len(self._held) + 1):
            if self._tracker.push(char):
                self._reset_search()
                continue
            for byte in char.encode():
                self._state = self._strings.advance(self._state, byte)
            stop = self._strings.found[self._state]
            found = [] if stop is None else [(len(stop), stop)]
            if (match := self._search.push(char)) is not None:
                found.append(match)
            if found and armed:
                length, stop = max(found, key=lambda match: match[0])
                self._reset_search()
                self._held = ""
                return data[: at - length], Match(stop, data[at - length : at])
        cut = len(data) - max(self._search.held, self._strings.held[self._state])
        self._held = data[cut:]
        return data[:cut], None

    def flush(self) -> str:
        held, self._held = self._held, ""
        self._reset_search()
        return held

    def _reset_search(self) -> None:
        self._state = 0
        self._search.reset()


class SpanTracker:
    """Tracks whether the text is inside a span that is not searched. A marker belongs to its span. A match that ends
    before a marker is complete counts."""

    def __init__(self, spans: tuple[MarkedSpan, ...]) -> None:
        self._spans = spans  # spans that may still open
        self._inside = next((span for span in spans if span.opened), None)
        # The span that the inner span has interrupted. It may continue after it, and its closing marker still ends it.
        self._outer: MarkedSpan | None = None
        self._longest = max((len(m) for s in spans for m in (s.opening, s.closing or "")), default=0)
        self._tail = ""  # the last characters, which may be part of a marker

    @property
    def inside(self) -> MarkedSpan | None:
        """The current span, or None."""
        return self._inside

    def push(self, char: str) -> bool:
        """Add a character. Return whether it is inside a span or completes a marker."""
        if not self._spans and self._inside is None:
            return False
        self._tail = (self._tail + char)[-self._longest :]
        inside = self._inside
        if inside is None:
            self._inside = self._find_opened(self._spans)
            return self._inside is not None
        if self._outer is not None and self._outer.resumes and self._is_closed(inside):
            self._inside, self._outer = self._outer, None
            self._tail = ""
        elif any(span is not None and self._is_closed(span) for span in (inside, self._outer)):
            gone = [span for span in (inside, self._outer) if span is not None and span.once]
            self._spans = tuple(span for span in self._spans if span not in gone)
            self._inside = self._outer = None
            self._tail = ""
        elif inside.until and (other := self._find_opened(s for s in self._spans if s.opening in inside.until)):
            self._inside, self._outer = other, inside
        return True

    def _is_closed(self, span: MarkedSpan) -> bool:
        return span.closing is not None and self._tail.endswith(span.closing)

    def _find_opened(self, spans: Iterable[MarkedSpan]) -> MarkedSpan | None:
        """Return the span whose opening marker is now complete, or None."""
        found = next((span for span in spans if self._tail.endswith(span.opening)), None)
        if found is not None:
            self._tail = ""
        return found
