"""Regular expressions over text that is still being written: where a match ends first, and what may still become one.

Python's own syntax, as a position automaton (Glushkov 1961) that is walked one character at a time, all ways at once: the cost per
character is bounded, whatever the pattern. What would need to look ahead or back is refused: anchors, look-around, back-references,
possessive repeats. Greedy and lazy mean the same, because the match that ends first counts.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeVar

from tailrace.errors import ParameterError

MAX_POSITIONS = 256  # characters to match, repeats written out
MAX_EDGES = 1024  # ways from one to the next: the work per character, 50 µs at worst
MAX_ALPHABET = 1024  # different characters whose answer is remembered, per test

T = TypeVar("T")


class Part(NamedTuple):
    """A piece of a pattern: whether it matches nothing as well, and the positions it may begin and end with."""

    empty: bool
    first: frozenset[int]
    last: frozenset[int]


NOTHING = Part(True, frozenset(), frozenset())


class ByCharacter(dict[str, T]):
    """What `ask` says of a character; asked once."""

    def __init__(self, ask: Callable[[str], T]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, char: str) -> T:
        if len(self) >= MAX_ALPHABET:
            self.clear()
        answer = self[char] = self._ask(char)
        return answer


class Patterns:
    """Regular expressions, compiled together; immutable.

    Attributes:
        passes: per position, which characters it matches. follow: the positions that may come next. ends: the expression that is
            complete with it. starts: the positions that a match may begin with, by its first character.

    Raises:
        ParameterError: an expression can't be read, needs what is not known yet, matches the empty text, or is too large.
    """

    def __init__(self, expressions: tuple[str, ...]) -> None:
        self.passes: list[ByCharacter[bool]] = []
        self.follow: list[set[int]] = []
        self.ends: list[str | None] = []
        self._edges = 0
        self._tests: dict[tuple[Any, int, int], ByCharacter[bool]] = {}  # a repeat asks the same again
        first: set[int] = set()
        for source in expressions:
            part = self._expression(source)
            first |= part.first
            for position in part.last:
                self.ends[position] = source
        self._tests.clear()
        self.starts = ByCharacter(lambda char: [position for position in sorted(first) if self.passes[position][char]])

    # ---- building

    def _expression(self, source: str) -> Part:
        try:
            with warnings.catch_warnings(action="ignore"):  # of a client's pattern, no matter for our log
                parsed = _parser.parse(source)
            part = self._sequence(parsed, parsed.state.flags)
        except ParameterError:
            raise
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ParameterError(f"stop_regex: {source[:100]!r} can't be read: {error}", "stop_regex") from error
        if part.empty:
            raise ParameterError(f"stop_regex: {source[:100]!r} matches the empty text", "stop_regex")
        return part

    def _sequence(self, nodes: Any, flags: int) -> Part:
        whole = NOTHING
        for op, value in nodes:
            whole = self._then(whole, self._node(op, value, flags))
        return whole

    def _node(self, op: Any, value: Any, flags: int) -> Part:
        if op in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
            return self._character(op, value, flags)
        if op is _constants.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, _compiler._combine_flags(flags, added, removed))
        if op is _constants.BRANCH:
            ways = [self._sequence(way, flags) for way in value[1]]
            return Part(any(w.empty for w in ways), union(w.first for w in ways), union(w.last for w in ways))
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, inner = value
            return self._repeat(low, high, inner, flags)
        raise ParameterError(
            f"stop_regex: {str(op).lower().replace('_', ' ')} is not supported: anchors, look-around, back-references and possessive "
            "repeats need text that is not there yet", "stop_regex",
        )  # fmt: skip

    def _character(self, op: Any, value: Any, flags: int) -> Part:
        if len(self.passes) >= MAX_POSITIONS:
            raise ParameterError(f"stop_regex: more than {MAX_POSITIONS} characters, repeats written out", "stop_regex")
        key = (op, value if isinstance(value, int) else id(value), flags)
        if key not in self._tests:
            state = _parser.State()
            state.flags = flags
            match = _compiler.compile(_parser.SubPattern(state, [(op, value)])).fullmatch
            self._tests[key] = ByCharacter(lambda char: match(char) is not None)
        self.passes.append(self._tests[key])
        self.follow.append(set())
        self.ends.append(None)
        only = frozenset((len(self.passes) - 1,))
        return Part(False, only, only)

    def _repeat(self, low: int, high: int, inner: Any, flags: int) -> Part:
        if high == 0:
            return NOTHING
        once = self._sequence(inner, flags)
        if not once.first:  # nothing, however often
            return once
        if low == 0 and high == _constants.MAXREPEAT:
            self._link(once.last, once.first)
            return once._replace(empty=True)
        whole = once._replace(empty=once.empty or low == 0)
        first, last = once.first, once.last  # of the copy that came last
        for _ in range(1, low):
            part = self._sequence(inner, flags)
            whole, first, last = self._then(whole, part), part.first, part.last
        if high == _constants.MAXREPEAT:  # it may come again
            self._link(last, first)
            return whole
        # x{0,3} is (x(x(x)?)?)?: each goes on to the next alone, so that the ways stay as many as the characters
        for _ in range(max(low, 1), high):
            part = self._sequence(inner, flags)
            self._link(last, part.first)
            whole, last = whole._replace(last=whole.last | part.last), part.last
        return whole

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


patterns = lru_cache(maxsize=16)(Patterns)


class Search:
    """One text's search.

    Attributes:
        held: characters at the end that may still become a match.
    """

    def __init__(self, compiled: Patterns) -> None:
        self._patterns = compiled
        self._begun: dict[int, int] = {}  # position reached → characters since the earliest match that got there began
        self.held = 0

    def push(self, char: str) -> tuple[int, str] | None:
        """One more character. How many characters the longest match has that is complete with it, and its expression."""
        of, starts = self._patterns, self._patterns.starts[char]
        if not self._begun and not starts:
            return None
        begun: dict[int, int] = dict.fromkeys(starts, 1)
        for position, length in self._begun.items():
            for target in of.follow[position]:
                if of.passes[target][char] and begun.get(target, 0) <= length:
                    begun[target] = length + 1
        self._begun = begun
        self.held = max((length for position, length in begun.items() if of.follow[position]), default=0)
        found = [(length, -position) for position, length in begun.items() if of.ends[position] is not None]
        if not found:
            return None
        length, position = max(found)
        return length, of.ends[-position] or ""

    def reset(self) -> None:
        """What comes next has nothing to do with what came before."""
        self._begun, self.held = {}, 0
