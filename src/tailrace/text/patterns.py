"""Regular expressions over text that is still being written: where a match ends first, and what may still become one.

Python's own syntax, as a position automaton (Glushkov 1961) that is walked one character at a time, all ways at once: the cost per
character is bounded, whatever the pattern. What would need to look ahead or back is refused: anchors, look-around, back-references,
possessive repeats. Greedy and lazy mean the same, because the match that ends first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from tailrace.errors import ParameterError

MAX_POSITIONS = 512  # characters to match, repeats written out
MAX_EDGES = 4096  # ways from one to the next: the work per character
MAX_ALPHABET = 4096  # different characters whose answer is remembered, per test

Test = Callable[[str], bool]


class Part(NamedTuple):
    """A piece of a pattern: whether it matches nothing as well, and the positions it may begin and end with."""

    empty: bool
    first: frozenset[int]
    last: frozenset[int]


NOTHING = Part(True, frozenset(), frozenset())


class Characters(dict[str, bool]):
    """Whether a character passes a test; asked once per character."""

    def __init__(self, test: Test) -> None:
        self._test = test

    def __missing__(self, char: str) -> bool:
        if len(self) >= MAX_ALPHABET:
            self.clear()
        answer = self[char] = self._test(char)
        return answer


class Patterns:
    """Strings and regular expressions, compiled together; immutable.

    Args:
        strings: looked for as they are. expressions: in the syntax of `re`.

    Raises:
        ParameterError: an expression can't be read, needs what is not known yet, matches the empty text, or is too large.
    """

    def __init__(self, strings: tuple[str, ...], expressions: tuple[str, ...]) -> None:
        self.passes: list[Characters] = []  # per position
        self.follow: list[set[int]] = []  # the positions that may come next
        self.ends: list[str | None] = []  # the pattern that is complete with it
        self._left = MAX_POSITIONS
        self._edges = 0
        first: set[int] = set()
        for source, part in [
            *((s, self._string(s)) for s in strings),
            *((e, self._expression(e)) for e in expressions),
        ]:
            first |= part.first
            for position in part.last:
                self.ends[position] = source
        self.first = tuple(sorted(first))

    @lru_cache(maxsize=MAX_ALPHABET)  # noqa: B019, lives as long as the patterns
    def starts(self, char: str) -> tuple[int, ...]:
        """The positions that a match may begin with at this character."""
        return tuple(position for position in self.first if self.passes[position][char])

    # ---- building

    def _string(self, string: str) -> Part:
        """As it is: only one way leads through, so its length costs nothing."""
        positions = [self._position(char.__eq__) for char in string]
        for one, other in pairwise(positions):
            self.follow[one].add(other)
        return Part(False, frozenset(positions[:1]), frozenset(positions[-1:]))

    def _expression(self, source: str) -> Part:
        try:
            parsed = _parser.parse(source)
            part = self._sequence(parsed, parsed.state.flags, parsed.state)
        except (re.error, OverflowError, RecursionError) as error:
            raise ParameterError(f"stop_regex: {source[:100]!r} can't be read: {error}", "stop_regex") from error
        if part.empty:
            raise ParameterError(f"stop_regex: {source[:100]!r} matches the empty text", "stop_regex")
        return part

    def _sequence(self, nodes: Any, flags: int, state: Any) -> Part:
        whole = NOTHING
        for op, value in nodes:
            whole = self._then(whole, self._node(op, value, flags, state))
        return whole

    def _node(self, op: Any, value: Any, flags: int, state: Any) -> Part:
        if op in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
            return self._character(op, value, flags, state)
        if op is _constants.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, (flags | added) & ~removed, state)
        if op is _constants.BRANCH:
            ways = [self._sequence(way, flags, state) for way in value[1]]
            return Part(any(w.empty for w in ways), union(w.first for w in ways), union(w.last for w in ways))
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, inner = value
            return self._repeat(low, high, inner, flags, state)
        raise ParameterError(
            f"stop_regex: {str(op).lower().replace('_', ' ')} is not supported: anchors, look-around, back-references and possessive "
            "repeats need text that is not there yet", "stop_regex",
        )  # fmt: skip

    def _character(self, op: Any, value: Any, flags: int, state: Any) -> Part:
        self._left -= 1
        if self._left < 0:
            raise ParameterError(f"stop_regex: more than {MAX_POSITIONS} characters, repeats written out", "stop_regex")
        match = _compiler.compile(_parser.SubPattern(state, [(op, value)]), flags).fullmatch
        only = frozenset((self._position(lambda char: match(char) is not None),))
        return Part(False, only, only)

    def _position(self, test: Test) -> int:
        self.passes.append(Characters(test))
        self.follow.append(set())
        self.ends.append(None)
        return len(self.passes) - 1

    def _repeat(self, low: int, high: int, inner: Any, flags: int, state: Any) -> Part:
        whole = NOTHING
        for _ in range(low - (high == _constants.MAXREPEAT and low > 0)):
            whole = self._then(whole, self._sequence(inner, flags, state))
        if high == _constants.MAXREPEAT:
            part = self._sequence(inner, flags, state)
            self._link(part.last, part.first)
            return self._then(whole, part._replace(empty=part.empty or low == 0))
        # x{0,3} is (x(x(x)?)?)?: each goes on to the next alone, so that the ways stay as many as the characters
        tail, last = NOTHING, frozenset[int]()
        for place in range(high - low):
            part = self._sequence(inner, flags, state)
            self._link(last, part.first)
            tail = Part(True, part.first if place == 0 else tail.first, tail.last | part.last)
            last = part.last
        return self._then(whole, tail)

    def _then(self, one: Part, other: Part) -> Part:
        self._link(one.last, other.first)
        return Part(
            one.empty and other.empty,
            one.first | other.first if one.empty else one.first,
            one.last | other.last if other.empty else other.last,
        )

    def _link(self, sources: frozenset[int], targets: frozenset[int]) -> None:
        self._edges += len(sources) * len(targets)
        if self._edges > MAX_EDGES:
            raise ParameterError(
                "stop_regex: too many ways through the pattern; make its repeats shorter", "stop_regex"
            )
        for source in sources:
            self.follow[source] |= targets


def union(sets: Any) -> frozenset[int]:
    """Of all."""
    return frozenset().union(*sets)


patterns = lru_cache(maxsize=64)(Patterns)


class Search:
    """One text's search.

    Attributes:
        held: characters at the end that may still become a match.
    """

    def __init__(self, compiled: Patterns) -> None:
        self._patterns = compiled
        self._begun: dict[int, int] = {}  # position reached → characters since the earliest match that got there began
        self.held = 0

    def push(self, char: str) -> tuple[str, int] | None:
        """One more character. The pattern that is complete with it, and how many characters its longest match has."""
        of = self._patterns
        if not self._begun and not of.starts(char):
            return None
        begun: dict[int, int] = dict.fromkeys(of.starts(char), 1)
        for position, length in self._begun.items():
            for target in of.follow[position]:
                if of.passes[target][char] and begun.get(target, 0) <= length:
                    begun[target] = length + 1
        self._begun = begun
        self.held = max((length for position, length in begun.items() if of.follow[position]), default=0)
        found = [(length, position) for position, length in begun.items() if of.ends[position] is not None]
        if not found:
            return None
        length, position = max(found, key=lambda entry: (entry[0], -entry[1]))
        return of.ends[position] or "", length

    def reset(self) -> None:
        """What comes next has nothing to do with what came before."""
        self._begun, self.held = {}, 0
